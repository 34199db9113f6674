"""Wheel of these sources, and an environment that contains only the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.packaging.installed import Installed

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "atelier.py")
FOLDERS = ("deploy", "models", "service", "workers")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-index", "--no-deps")


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the installed sources; builds write files next to their sources."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "models" / "demo" / "runs", ignore_errors=True)
    return copy


@pytest.fixture(scope="session")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", str(folder), str(sources))
    [wheel_] = folder.iterdir()
    return wheel_


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in its own environment; its dependencies are those of the tests. A .pth file adds
    their folder; .pth files in that folder, such as the editable install's, are then ignored."""
    environment = empty(tmp_path_factory.mktemp("environment"))
    run(*PIP, "--python", str(environment.python), "install", *OFFLINE, str(wheel))
    (environment.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return environment


@pytest.fixture(scope="session")
def editable(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The sources in their own environment, by the wheel that `pip install -e` builds."""
    folder = tmp_path_factory.mktemp("editable-wheel")
    build = f"from setuptools import build_meta; build_meta.build_editable({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=sources)
    environment = empty(tmp_path_factory.mktemp("editable"))
    run(*PIP, "--python", str(environment.python), "install", *OFFLINE, *map(str, folder.iterdir()))
    return environment


def empty(folder: Path) -> Installed:
    """Make an environment with only Python."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    return Installed(folder)


def run(*command: str, cwd: Path | None = None) -> None:
    process = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
