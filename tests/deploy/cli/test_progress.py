"""Progress of a job in plain lines."""

from __future__ import annotations

import pytest

from deploy.cli.remote import show
from service.client import JobEvent


def test_compilation_shows_its_expected_time(capsys: pytest.CaptureFixture[str]) -> None:
    compiling = {"stage": "compiling", "expected_s": 37.6}
    show(
        [
            JobEvent("1", "queued", {}),
            JobEvent("2", "running", {"pool": "p", "attempt": 1}),
            JobEvent("3", "progress", {"step": 0, "steps": 4, "detail": compiling}),
            JobEvent("4", "progress", {"step": 4, "steps": 4, "detail": {"stage": "denoising"}}),
        ]
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["waiting", "running", "compiling, about 38 s", "step 4 of 4"]
