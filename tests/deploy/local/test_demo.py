"""The demo's first outputs, in whatever order its models become ready."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.local.demo import Firsts

SERVER = "http://127.0.0.1:1"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Models that were asked for an output, and the exit codes of those that fail."""
    asked: list[str] = []
    codes: dict[str, int] = {}

    def generate(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[command.index("--model") + 1] if "--model" in command else "")
        return subprocess.CompletedProcess(command, codes.get(asked[-1], 0))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", generate)
    return asked, codes


def test_an_edit_waits_for_its_image(run: Any) -> None:
    asked, _ = run
    firsts = Firsts()
    for model in ("flux-edit-demo", "sdxl-demo", "flux-demo", "wan-demo", "Atelier"):
        firsts.ready(model, SERVER)
    assert asked == ["sdxl-demo", "flux-demo", "flux-edit-demo", "wan-demo"]


def test_an_edit_is_not_made_of_an_image_that_failed(run: Any) -> None:
    asked, codes = run
    firsts = Firsts()
    codes["flux-demo"] = 1
    for model in ("flux-demo", "flux-edit-demo"):
        firsts.ready(model, SERVER)
    assert asked == ["flux-demo"]
    codes.clear()
    firsts.ready("flux-demo", SERVER)
    assert asked == ["flux-demo", "flux-demo", "flux-edit-demo"]


def test_a_system_without_demo_models_makes_one_image(run: Any) -> None:
    asked, _ = run
    firsts = Firsts()
    for model in ("mine", "Atelier"):
        firsts.ready(model, SERVER)
    assert asked == [""]
