"""What `atelier profile` prints for people."""

from __future__ import annotations

from dataclasses import asdict

from deploy.profiling import as_text
from workers.profiling.shares import Kind, Report, Top


def test_a_report_tells_of_one_step() -> None:
    made = Report(
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
    told = {"pool": "flux-3f", "model": "flux-dev", "layout": "ulysses=4", **asdict(made)}
    text = as_text(told)
    lines = text.splitlines()
    assert lines[0].endswith("10 steps in 2.000 s, 200.00 ms each")
    assert "compute             100.00    50.0%" in lines
    assert "communication        50.00    25.0%  between devices" in text
    assert "2.00 ms more of communication went on behind compute" in text
    assert f"{'all-gather.1':<40}    40.000      6.0  communication" in lines
    assert max(len(line) for line in lines) < 90
