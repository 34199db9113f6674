"""A short chaos run: every kind of action once, then all invariants. `make chaos` runs longer with
a new seed each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import plan
from tests.chaos.invariants import breaches
from tests.chaos.run import Run, Size

SEED = 5
ORDERS = 60
SIZE = Size(span_s=15, acts=len(plan.ACT_KINDS), orders=ORDERS)


@pytest.mark.timeout(900)  # seconds; the machine may be slow
async def test_accepted_jobs_survive_random_failures(tmp_path: Path) -> None:
    history = await Run(tmp_path, SEED, SIZE, print).run()
    broken = breaches(history)
    assert not broken, "\n".join(str(breach) for breach in broken)
    assert len(history.jobs) > ORDERS / 2, "few were accepted and kept"
    hurt = {(exit.name.split("-")[0], exit.act) for exit in history.exits}
    kinds = (plan.Kind.KILL, plan.Kind.DRAIN)
    assert hurt >= {(process_kind, kind) for process_kind in ("pool", "front") for kind in kinds}
