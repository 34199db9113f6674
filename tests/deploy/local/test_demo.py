"""First outputs of the demo, for any order in which its models become ready."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.local.demo import FirstOutputs

SERVER = "http://127.0.0.1:1"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Models that received a request, and exit codes to fail with."""
    models: list[str] = []
    codes: dict[str, int] = {}

    def generate(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        models.append(command[command.index("--model") + 1] if "--model" in command else "")
        return subprocess.CompletedProcess(command, codes.get(models[-1], 0))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", generate)
    return models, codes


def test_an_edit_waits_for_its_image(run: Any) -> None:
    models, _ = run
    first_outputs = FirstOutputs()
    for model in ("flux-edit-demo", "sdxl-demo", "flux-demo", "wan-demo", "Atelier"):
        first_outputs.ready(model, SERVER)
    assert models == ["sdxl-demo", "flux-demo", "flux-edit-demo", "wan-demo"]


def test_an_edit_is_not_made_of_an_image_that_failed(run: Any) -> None:
    models, codes = run
    first_outputs = FirstOutputs()
    codes["flux-demo"] = 1
    for model in ("flux-demo", "flux-edit-demo"):
        first_outputs.ready(model, SERVER)
    assert models == ["flux-demo"]
    codes.clear()
    first_outputs.ready("flux-demo", SERVER)
    assert models == ["flux-demo", "flux-demo", "flux-edit-demo"]


def test_a_system_without_demo_models_makes_one_image(run: Any) -> None:
    models, _ = run
    first_outputs = FirstOutputs()
    for model in ("mine", "Atelier"):
        first_outputs.ready(model, SERVER)
    assert models == [""]
