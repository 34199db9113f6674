"""A wheel of these sources, and an environment that has nothing else of ours."""

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
    """A copy of what is installed: a build leaves files beside its sources."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "models" / "demo" / "runs", ignore_errors=True)
    return copy


@pytest.fixture(scope="session")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dist")
    run(*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", str(made), str(sources))
    [found] = made.iterdir()
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own; what it depends on is that of the tests.

    A .pth file adds their folder, whose own .pth files, our editable install's among them, are not
    read then.
    """
    found = empty(tmp_path_factory.mktemp("environment"))
    run(*PIP, "--python", str(found.python), "install", *OFFLINE, str(wheel))
    (found.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return found


@pytest.fixture(scope="session")
def editable(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The sources in an environment of their own, by the wheel that `pip install -e` makes."""
    made = tmp_path_factory.mktemp("editable-wheel")
    build = f"from setuptools import build_meta; build_meta.build_editable({str(made)!r})"
    run(sys.executable, "-c", build, cwd=sources)
    found = empty(tmp_path_factory.mktemp("editable"))
    run(*PIP, "--python", str(found.python), "install", *OFFLINE, *map(str, made.iterdir()))
    return found


def empty(folder: Path) -> Installed:
    """Make an environment that has nothing but Python."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    return Installed(folder)


def run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
