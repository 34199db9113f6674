"""Wheels for a machine with JAX and torch but few other packages, and no package index.

    python -m lab.bench.gpu.wheels          # here: fill the folder .wheels
    python3 -m lab.bench.gpu                # there: unpack missing packages

The folder travels with the project, whose total size `lab.bench.gpu.pack` limits, so it omits JAX,
torch and NVIDIA's libraries.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from tools.packages import LOCK, Entry, entries

FOLDER = Path(".wheels")
PYTHON = "3.12"
GLIBC = range(17, 40)
"""Minor versions of glibc 2 that wheels may require; pip matches each tag exactly."""
THERE = (
    "jax", "jaxlib", "flax", "numpy", "scipy", "ml-dtypes", "opt-einsum", "torch", "triton",
    "transformers", "tokenizers", "safetensors", "huggingface-hub", "hf-xet", "sentencepiece",
    "protobuf", "pillow", "tqdm", "setuptools", "sympy", "mpmath", "networkx", "jinja2",
    "markupsafe", "fsspec", "absl-py", "etils", "humanize", "msgpack", "treescope", "optax",
    "orbax-checkpoint", "tensorstore", "peft", "rich", "markdown-it-py", "mdurl", "pygments",
    "httpx", "httpcore", "h11", "anyio", "idna", "certifi", "typing-extensions",
    "prometheus-client",
)  # fmt: skip
"""Packages that a machine-learning image has; large, or bound to its JAX and torch."""
NEEDED = (
    "accelerate", "annotated-doc", "annotated-types", "charset-normalizer", "click", "diffusers",
    "fastapi", "filelock", "ftfy", "hiredis", "httpcore2", "httpx2", "importlib-metadata",
    "jaxtyping", "obstore", "opentelemetry-api", "packaging", "psutil", "pydantic", "pydantic-core",
    "pydantic-settings", "python-dotenv", "pyyaml", "qwix", "redis", "regex", "requests", "sniffio",
    "starlette", "tenacity", "truststore", "typing-inspection", "urllib3", "uvicorn",
    "wadler-lindig", "wcwidth", "zipp",
)  # fmt: skip
"""All other packages that the stages import, with dependencies. Video codecs and a Redis server are
not needed, as pixels are compared as arrays."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--python", default=PYTHON, help="of the machine they are for")
    args = parser.parse_args(words)
    size = fetch(args.folder, chosen(entries(LOCK.read_text()), args.python), args.python)
    print(f"{args.folder}: {len(list(args.folder.glob('*.whl')))} wheels, {size / 2**20:.1f} MiB")
    return 0


def chosen(lock: Iterable[Entry], python: str) -> list[Entry]:
    """Entries of the lock that a machine with that Python may lack."""
    environment = {
        "python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
        "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    }  # fmt: skip
    return [
        Entry(pin.partition(";")[0].strip(), hashes, extras)
        for pin, hashes, extras in lock
        if (requirement := Requirement(pin)).name in NEEDED
        and (requirement.marker is None or requirement.marker.evaluate(environment))
    ]


def fetch(folder: Path, packages: Iterable[Entry], python: str) -> int:
    """Download the wheels; return their size in bytes. Raises: CalledProcessError."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in reversed(GLIBC)]
    platforms += ["--platform=manylinux2014_x86_64"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(map(str, packages)))
        file.flush()
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
             "--only-binary=:all:", "--implementation=cp", f"--python-version={python}",
             *platforms, f"--dest={folder}", f"--requirement={file.name}"],
            check=True,
        )  # fmt: skip
    return sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))


if __name__ == "__main__":
    sys.exit(main())
