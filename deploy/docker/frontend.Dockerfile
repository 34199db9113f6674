# syntax=docker/dockerfile:1
# Front end: HTTP and the queue, without JAX. Build it in the project's root:
#   docker build --file deploy/docker/frontend.Dockerfile --tag atelier-frontend .
ARG PYTHON=3.13-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_CACHE_DIR=/build/.cache/pip \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv --without-pip /opt/atelier
# Layers that rarely change come first: packages, then Atelier itself.
COPY deploy/docker/frontend.lock packages.lock
RUN --mount=type=cache,target=/build/.cache/pip \
    python -m pip --python /opt/atelier install --require-hashes --only-binary :all: \
        --no-deps --requirement packages.lock
COPY deploy/docker/build.lock ./
RUN --mount=type=cache,target=/build/.cache/pip \
    python -m pip install --require-hashes --only-binary :all: --no-deps \
        --target tools --requirement build.lock
COPY pyproject.toml README.md LICENSE atelier.py ./
COPY service service
COPY models/*.py models/
COPY models/adapters/__init__.py models/adapters/
COPY models/adapters/files models/adapters/files
COPY models/checkpoint models/checkpoint
COPY models/media models/media
COPY models/spec models/spec
COPY models/chroma/__init__.py models/chroma/request.py models/chroma/
COPY models/flux/__init__.py models/flux/request.py models/flux/
COPY models/flux2/__init__.py models/flux2/request.py models/flux2/
COPY models/krea2/__init__.py models/krea2/request.py models/krea2/
COPY models/ltx/__init__.py models/ltx/request.py models/ltx/
COPY models/qwenimage/__init__.py models/qwenimage/request.py models/qwenimage/
COPY models/qwenimage21/__init__.py models/qwenimage21/request.py models/qwenimage21/
COPY models/sdxl/__init__.py models/sdxl/request.py models/sdxl/
COPY models/wan/__init__.py models/wan/request.py models/wan/
COPY models/zimage/__init__.py models/zimage/request.py models/zimage/
COPY deploy/*.py deploy/
COPY deploy/admin deploy/admin
COPY deploy/cli deploy/cli
COPY deploy/local deploy/local
COPY deploy/docker/*.py deploy/docker/
RUN PYTHONPATH=tools python -m pip wheel --no-index --no-deps --no-build-isolation \
        --wheel-dir wheels . \
    && python -m pip --python /opt/atelier install --no-index --no-deps wheels/*.whl \
    && python -m pip --python /opt/atelier check

FROM python:${PYTHON}
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Atelier, a front end" \
      org.opencontainers.image.description="Images and video from SDXL, Flux, Chroma, FLUX.2, Z-Image, Qwen-Image, Krea 2, Wan and LTX-2: HTTP and the queue" \
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
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/atelier
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-m", "deploy.docker.health_check", "http://127.0.0.1:8000/healthz"]
ENTRYPOINT ["atelier"]
CMD ["serve", "--host", "0.0.0.0"]
