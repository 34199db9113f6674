"""`make images-check`: build the images without Docker and run docker-compose.yml's services in
them.

Runs the Dockerfiles' commands in a stand-in for the base image. With `frontend` it starts Redis and
the front end, with `worker-cpu` also a demo pool, each with the command, environment, volumes, user
and read-only root of docker-compose.yml. Needs Linux, root and a package index.

    python -m tests.deploy.docker.check frontend worker-cpu
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.deploy.docker.build import Builder, Image
from tests.deploy.docker.containers import Containers
from tests.deploy.docker.context import Context
from tests.deploy.docker.dockerfile import FOLDER, ROOT, Dockerfile
from tests.deploy.docker.network import own_network

CACHE = Path.home() / ".cache" / "pip"
MOST_MB = {"frontend": 350}
"""Largest size of an image's installed packages and Atelier."""
PICTURE = "picture.png"
SHOWN = ROOT / ".atelier" / "images-check.png"
PROMPT = "a red circle on a blue background"
EXIT_CONFIG = 78


def main(names: list[str]) -> int:
    """Check the named images; returns 0. Raises: AssertionError: a check failed, with its
    reason."""
    with TemporaryDirectory(prefix="images-", ignore_cleanup_errors=True) as folder:
        images = {name: _build(name, Path(folder) / name) for name in names}
        if "frontend" in images:
            _check_services(images, Path(folder) / "volumes")
    return 0


def _check_services(images: dict[str, Image], volumes: Path) -> None:
    with own_network() as network, Containers(images, volumes, network) as containers:
        _check_front_end(containers)
        if "worker-cpu" in images:
            _check_pool(containers)
    _say("drained and ended with 0")


def _build(name: str, folder: Path) -> Image:
    file, _, accelerator = name.partition("-")
    arguments = {"ACCELERATOR": accelerator} if accelerator else {}
    dockerfile = Dockerfile.read(FOLDER / f"{file}.Dockerfile")
    started = time.monotonic()
    image = Builder(dockerfile, Context(ROOT), folder, CACHE, arguments, _say).build()
    size_mb = _size_mb(image.machine.root / "opt/atelier")
    _say(f"{name}: {size_mb:.0f} MB in /opt/atelier, after {time.monotonic() - started:.0f} s")
    assert size_mb < MOST_MB.get(name, float("inf")), f"{name} has grown to {size_mb:.0f} MB"
    return image


def _size_mb(folder: Path) -> float:
    files = (path.lstat() for path in folder.rglob("*"))
    return sum(stat.st_blocks * 512 for stat in files) / 1e6


def _check_front_end(containers: Containers) -> None:
    containers.start("redis")
    containers.start("frontend")
    containers.wait_until_healthy("frontend")
    _say("frontend: healthy by its own HEALTHCHECK")
    program = "import os; print(os.getuid(), os.access('/opt', os.W_OK)); open('/tmp/x', 'w')"
    assert containers.execute("frontend", "python", "-c", program) == (0, "10001 False\n")
    code, output = containers.execute("frontend", "atelier", "worker", "--pool", "flux-demo")
    assert (code, ".[cpu]" in output) == (EXIT_CONFIG, True), output
    code, output = containers.execute("frontend", "python", "-c", "import jax")
    assert code == 1 and "No module named 'jax'" in output, output
    _check_keys(containers)


def _check_keys(containers: Containers) -> None:
    """A front end that other machines can reach requires an API key before it starts."""
    open_to_all = ("env", "ATELIER_SERVER__PUBLISHED_AT=0.0.0.0", "atelier", "serve")
    code, output = containers.execute("frontend", *open_to_all)
    assert code == EXIT_CONFIG and "there is no API key yet" in output, output
    code, output = containers.execute("frontend", "atelier", "keys", "create", "--tenant", "acme")
    assert code == 0 and output.startswith("atl_"), output


def _check_pool(containers: Containers) -> None:
    containers.start("flux-demo")
    containers.wait_until_healthy("flux-demo")
    command = (
        "atelier",
        "generate",
        PROMPT,
        "--seed",
        "7",
        "--output",
        f"/var/lib/atelier/{PICTURE}",
    )
    code, output = containers.execute("frontend", *command)
    assert code == 0, output
    image = containers.volume("state") / PICTURE
    SHOWN.parent.mkdir(exist_ok=True)
    shutil.copy(image, SHOWN)
    _say(f"flux-demo: {PROMPT!r} is in {SHOWN}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
