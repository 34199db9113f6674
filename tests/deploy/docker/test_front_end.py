"""A front end runs with only its lock's packages and its image's files; commands of pools name the
missing packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from deploy.exit_codes import EXIT_CONFIG
from tests.deploy.docker.context import Context
from tests.deploy.docker.dockerfile import FOLDER, ROOT, Dockerfile
from tests.deploy.docker.locks import read
from tools.image_locks import lock_file

COMMANDS = (
    "service.server, service.client, service.openapi, service.tracing.exporter,"
    " deploy.admin.api_keys, deploy.admin.profiling, deploy.docker.health_check, rich"
)
"""Modules that `serve`, traces, `generate`, `keys`, `profile` and the health check import."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the packages that the lock names and the image's copy of the project."""
    folder = tmp_path_factory.mktemp("packages")
    for name in read(lock_file("frontend").read_text("utf-8")):
        if name == "async-timeout" and sys.version_info >= (3, 11, 3):  # only older Pythons need it
            continue
        installed = distribution(name)
        for top in {Path(str(file)).parts[0] for file in installed.files or ()} - {
            "..",
            "__pycache__",
        }:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(installed.locate_file(top))))
    context = Context(ROOT)
    stages = Dockerfile.read(FOLDER / "frontend.Dockerfile").stages
    copies = [each for stage in stages for each in stage.instructions if each.name == "COPY"]
    for *sources, target in (each.text.split() for each in copies if "from" not in each.flags):
        context.copy(sources, target, folder)
    return folder


def python(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with only these packages."""
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=packages)


def test_the_lock_is_enough(packages: Path) -> None:
    process = python(packages, "-c", f"import {COMMANDS}")
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    "command", ["up", "worker --pool flux", "plan --model sdxl --topology v6e:1x1"]
)
def test_pool_names_its_missing_packages(packages: Path, command: str) -> None:
    process = python(packages, "-m", "atelier", *command.split())
    assert process.returncode == EXIT_CONFIG, process.stderr
    assert process.stderr.startswith("atelier: pools need jax")
    assert "pip install -e '.[cpu]'" in process.stderr


def test_no_text_installs_our_name_from_the_package_index() -> None:
    """The name belongs to another project on the package index."""
    texts = [*ROOT.glob("*.md"), ROOT / "atelier.py", ROOT / "Makefile"]
    for folder in ("docs", "deploy", "service", "workers", "models"):
        texts += [*(ROOT / folder).rglob("*.md"), *(ROOT / folder).rglob("*.py")]
    pattern = re.compile(r"pip install (-\S+ )*['\"]?atelier\b")
    assert [path for path in texts if pattern.search(path.read_text("utf-8"))] == []
