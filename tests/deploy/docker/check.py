"""`make images-check`: the images without Docker, and the services of docker-compose.yml in them.

Runs the Dockerfiles' own commands in a stand-in for the base image. With frontend among them it
starts Redis, that, and with worker-cpu a demo pool, as docker-compose.yml says: command,
environment, volumes, user, read-only root. Needs Linux, root and a package index.

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
"""Of packages and Atelier, installed."""
PICTURE = "picture.png"
SHOWN = ROOT / ".atelier" / "images-check.png"
PROMPT = "a red circle on a blue background"
EXIT_CONFIG = 78


def main(names: list[str]) -> int:
    """0 when all is as it should be. Raises: AssertionError: it is not; says what."""
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
    look = "import os; print(os.getuid(), os.access('/opt', os.W_OK)); open('/tmp/x', 'w')"
    assert containers.execute("frontend", "python", "-c", look) == (0, "10001 False\n")
    code, said = containers.execute("frontend", "atelier", "worker", "--pool", "flux-demo")
    assert (code, ".[cpu]" in said) == (EXIT_CONFIG, True), said
    code, said = containers.execute("frontend", "python", "-c", "import jax")
    assert code == 1 and "No module named 'jax'" in said, said
    _check_keys(containers)


def _check_keys(containers: Containers) -> None:
    """Published to other machines, a front end wants a key before it starts."""
    open_to_all = ("env", "ATELIER_SERVER__PUBLISHED_AT=0.0.0.0", "atelier", "serve")
    code, said = containers.execute("frontend", *open_to_all)
    assert code == EXIT_CONFIG and "there is no API key yet" in said, said
    code, said = containers.execute("frontend", "atelier", "keys", "create", "--tenant", "acme")
    assert code == 0 and said.startswith("atl_"), said


def _check_pool(containers: Containers) -> None:
    containers.start("flux-demo")
    containers.wait_until_healthy("flux-demo")
    ask = ("atelier", "generate", PROMPT, "--seed", "7", "--output", f"/var/lib/atelier/{PICTURE}")
    code, said = containers.execute("frontend", *ask)
    assert code == 0, said
    picture = containers.volume("state") / PICTURE
    SHOWN.parent.mkdir(exist_ok=True)
    shutil.copy(picture, SHOWN)
    _say(f"flux-demo: {PROMPT!r} is in {SHOWN}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
