"""Overlays as kubectl or kustomize renders them, each once per test run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.cluster.overlay import renderer

REPOSITORY = Path(__file__).parents[3]
K8S = REPOSITORY / "deploy" / "k8s"
OVERLAYS = sorted(folder.name for folder in (K8S / "overlays").iterdir())
GKE = [name for name in OVERLAYS if name.startswith("gke-")]
SPOT = [name for name in OVERLAYS if name.endswith("-spot")]
ROOT = [name for name in OVERLAYS if name.endswith("-root")]

Object = dict[str, Any]


@cache
def rendered(folder: Path) -> tuple[Object, ...]:
    """All objects of a kustomization. Skips the test if no renderer is installed."""
    try:
        command = renderer()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    process = subprocess.run([*command, str(folder)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert not process.stderr, "it warns of something that will not work one day: " + process.stderr
    return tuple(load_all(process.stdout))


def overlay(name: str) -> tuple[Object, ...]:
    return rendered(K8S / "overlays" / name)


def load_all(text: str) -> Iterator[Object]:
    yield from yaml.load_all(text, yaml.CSafeLoader)


def stands_on(name: str) -> str:
    """The overlay that a -spot or -root variant builds on."""
    return name.removesuffix("-spot").removesuffix("-root")


def edited(folder: Path, name: str, *edits: tuple[str, str], of: str = "") -> tuple[Object, ...]:
    """Render an overlay after edits of its kustomization, or of the one (`of`) that it builds
    on."""
    overlays = copied(folder) / "overlays"
    file = overlays / (of or name) / "kustomization.yaml"
    text = file.read_text()
    for before, after in edits:
        assert before in text, f"{file} has no {before!r}"
        text = text.replace(before, after)
    file.write_text(text)
    return rendered(overlays / name)


def copied(folder: Path) -> Path:
    """Copy all manifests into a folder, for edits."""
    return Path(shutil.copytree(K8S, folder, dirs_exist_ok=True))
