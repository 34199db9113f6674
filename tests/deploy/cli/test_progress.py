"""How far a job is, in plain lines."""

from __future__ import annotations

import pytest

from deploy.cli.progress import show
from service.client import Event


def test_compiling_is_told_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    compiling = {"stage": "compiling", "expected_s": 37.6}
    show(
        [
            Event("1", "queued", {}),
            Event("2", "running", {"pool": "p", "attempt": 1}),
            Event("3", "progress", {"step": 0, "steps": 4, "detail": compiling}),
            Event("4", "progress", {"step": 4, "steps": 4, "detail": {"stage": "denoising"}}),
        ]
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["waiting", "running", "compiling, about 38 s", "step 4 of 4"]
