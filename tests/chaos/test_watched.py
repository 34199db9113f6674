"""Ledger, Prometheus and clients count the same while processes, Redis and the store fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.monitored import Watched, faults_of, size_of

SEED = 22
SOURCES = {"ledger", "clients", "Prometheus"}


@pytest.mark.timeout(3600)  # seconds; the machine may be slow
@pytest.mark.parametrize("minutes", [10])
async def test_every_job_and_refusal_is_counted_alike(minutes: float, tmp_path: Path) -> None:
    run = Watched(tmp_path, SEED, size_of(minutes), print)
    await run.run()
    faults = faults_of(run)
    assert not faults, "\n".join(faults)
    assert run.counted.keys() == SOURCES
    assert run.counted["Prometheus"]["jobs"] > len(run.history.results) / 3, "few were accepted"
