"""Overlays as kubectl or kustomize renders them, once a run each."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]
K8S = REPOSITORY / "deploy" / "k8s"
OVERLAYS = sorted(folder.name for folder in (K8S / "overlays").iterdir())
GKE = [name for name in OVERLAYS if name.startswith("gke-")]
SPOT = [name for name in OVERLAYS if name.endswith("-spot")]
RENDERERS = (("kubectl", "kustomize"), ("kustomize", "build"))

Object = dict[str, Any]


def renderer() -> tuple[str, str]:
    """The command that renders a folder."""
    for program, command in RENDERERS:
        if shutil.which(program):
            return program, command
    pytest.fail("neither kubectl (1.27 or later) nor kustomize (5 or later) is on the PATH")


@cache
def rendered(folder: Path) -> tuple[Object, ...]:
    """All objects of a kustomization."""
    done = subprocess.run([*renderer(), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "it warns of something that will not work one day: " + done.stderr
    return tuple(load_all(done.stdout))


def overlay(name: str) -> tuple[Object, ...]:
    return rendered(K8S / "overlays" / name)


def load_all(text: str) -> Iterator[Object]:
    yield from yaml.load_all(text, yaml.CSafeLoader)


def edited(folder: Path, name: str, line: str, *lines: str) -> tuple[Object, ...]:
    """An overlay in whose kustomization somebody put other lines in place of one."""
    file = copied(folder) / "overlays" / name / "kustomization.yaml"
    before = file.read_text()
    assert f"{line}\n" in before, f"{name} has no line {line!r}"
    file.write_text(before.replace(f"{line}\n", "".join(f"{one}\n" for one in lines)))
    return rendered(file.parent)


def copied(folder: Path) -> Path:
    """All manifests, to be changed."""
    return Path(shutil.copytree(K8S, folder, dirs_exist_ok=True))
