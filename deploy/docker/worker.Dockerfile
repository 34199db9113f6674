# syntax=docker/dockerfile:1
# Worker for one kind of accelerator: cpu (with the demo models), cuda or tpu. Build it in the
# project's root:
#   docker build --file deploy/docker/worker.Dockerfile --build-arg ACCELERATOR=cuda \
#       --tag atelier-worker-cuda .
# cpu and cuda support x86-64 and 64-bit ARM, tpu only x86-64: there are no other wheels.
ARG PYTHON=3.13-slim-bookworm
ARG ACCELERATOR=cpu

FROM python:${PYTHON} AS build
ARG ACCELERATOR
ENV PIP_CACHE_DIR=/build/.cache/pip \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv --without-pip /opt/atelier
# Layers that rarely change come first: packages (gigabytes), then Atelier itself.
COPY deploy/docker/worker-${ACCELERATOR}.lock packages.lock
RUN --mount=type=cache,target=/build/.cache/pip \
    python -m pip --python /opt/atelier install --require-hashes --only-binary :all: \
        --no-deps --requirement packages.lock
COPY deploy/docker/build.lock ./
RUN --mount=type=cache,target=/build/.cache/pip \
    python -m pip install --require-hashes --only-binary :all: --no-deps \
        --target tools --requirement build.lock
COPY pyproject.toml README.md LICENSE atelier.py ./
COPY service service
COPY models models
COPY workers workers
COPY deploy/*.py deploy/
COPY deploy/admin deploy/admin
COPY deploy/cli deploy/cli
COPY deploy/local deploy/local
COPY deploy/docker/*.py deploy/docker/
# The demo models are data next to the code, in the cpu image only.
RUN rm -r models/demo \
    && PYTHONPATH=tools python -m pip wheel --no-index --no-deps --no-build-isolation \
        --wheel-dir wheels . \
    && python -m pip --python /opt/atelier install --no-index --no-deps wheels/*.whl \
    && python -m pip --python /opt/atelier check

FROM python:${PYTHON} AS worker
ARG ACCELERATOR
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Atelier, a pool (${ACCELERATOR})" \
      org.opencontainers.image.description="Images and video from SDXL, Flux, Chroma, FLUX.2, Z-Image, Qwen-Image, Krea 2, Wan and LTX-2: a pool of JAX workers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
# Volumes get the owner of the folders that they are mounted over.
RUN groupadd --gid 10001 atelier \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin atelier \
    && install --directory --owner 10001 --group 10001 /var/lib/atelier /var/cache/atelier
COPY --from=build /opt/atelier /opt/atelier
ENV PATH=/opt/atelier/bin:$PATH \
    HOME=/tmp \
    HF_HOME=/var/cache/atelier/huggingface \
    TRANSFORMERS_NO_ADVISORY_WARNINGS=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/atelier
USER 10001:10001
EXPOSE 9100
# Checks a pool with metrics_port = 9100, which is healthy while it loads its weights.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
    CMD ["python", "-m", "deploy.docker.health_check", "http://127.0.0.1:9100/healthz"]
ENTRYPOINT ["atelier"]
CMD ["worker", "--help"]

# JAX_PLATFORMS: without its accelerator a worker exits, instead of running slowly on the CPU.
FROM worker AS worker-cpu
ENV JAX_PLATFORMS=cpu
COPY models/demo/flux /weights/demo/flux
COPY models/demo/sdxl /weights/demo/sdxl
COPY models/demo/wan /weights/demo/wan

FROM worker AS worker-cuda
ENV JAX_PLATFORMS=cuda,cpu \
    CUDA_CACHE_PATH=/var/cache/atelier/cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM worker AS worker-tpu
ENV JAX_PLATFORMS=tpu,cpu

# hadolint ignore=DL3006
FROM worker-${ACCELERATOR}
