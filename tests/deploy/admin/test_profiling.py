"""Text output of `atelier profile`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

import atelier
from deploy.admin.profiling import as_text
from deploy.exit_codes import EXIT_USAGE
from workers.profiling.breakdown import Kind, Report, Top
from workers.profiling.recorder import Unreadable, read_in_subprocess


def test_report_averages_over_one_step() -> None:
    measured = Report(
        devices=4,
        steps=10,
        window_s=2.0,
        compute_s=1.0,
        communication_s=0.5,
        other_s=0.25,
        waiting_s=0.15,
        no_work_s=0.1,
        hidden_s=0.02,
        top=(Top("all-gather.1", Kind.COMMUNICATION, 0.4, 60.0), Top("f" * 99, Kind.COMPUTE, 0, 1)),
    )
    fields = {"pool": "flux-3f", "model": "flux-dev", "layout": "ulysses=4", **asdict(measured)}
    text = as_text(fields)
    lines = text.splitlines()
    assert lines[0].endswith("4 devices: 10 steps in 2.000 s, 200.00 ms each")
    assert "4 of 8 devices:" in as_text(fields | {"slice_devices": 8}), "of the first host"
    assert "compute             100.00    50.0%" in lines
    assert "communication        50.00    25.0%  between devices" in text
    assert "2.00 ms more of communication overlapped with compute" in text
    assert f"{'all-gather.1':<40}    40.000      6.0  communication" in lines
    assert max(len(line) for line in lines) < 90


@pytest.mark.parametrize("option", ["--steps=101", "--seconds=301", "--wait=-1"])
def test_recording_limits_are_validated(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert atelier.main(["profile", "--pool", "flux", option]) == EXIT_USAGE
    assert option.partition("=")[0] in capsys.readouterr().err


async def test_unreadable_profile_is_reported(tmp_path: Path) -> None:
    (tmp_path / "broken.xplane.pb").write_bytes(b"no protobuf")
    with pytest.raises(Unreadable, match="fewer --steps"):
        await read_in_subprocess(tmp_path, 1)
