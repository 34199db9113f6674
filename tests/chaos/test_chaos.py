"""Chaos in its short form: everything that is done to a system once, and every invariant after it.

`make chaos` does it for longer, and with another seed each time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import plan
from tests.chaos.invariants import breaches
from tests.chaos.run import Run, Size

SEED = 5
SIZE = Size(span_s=15, acts=len(plan.SORTS), orders=60)


@pytest.mark.timeout(900)  # ten minutes of waiting for a machine that does little for us
async def test_nothing_accepted_is_lost_whatever_dies(tmp_path: Path) -> None:
    history = await Run(tmp_path, SEED, SIZE, print).run()
    found = breaches(history)
    assert not found, "\n".join(str(breach) for breach in found)
    assert len(history.seen) > SIZE.orders / 2, "few were accepted and kept"
    hurt = {(exit.name.split("-")[0], exit.asked) for exit in history.exits}
    kinds = (plan.Kind.KILL, plan.Kind.DRAIN)
    assert hurt >= {(what, kind) for what in ("pool", "front") for kind in kinds}
