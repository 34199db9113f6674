"""Program that runs `atelier` with images that a test can hold at a step, however late it
begins."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACE_S = 0.1
"""Minimum time of a step while images are held.

Many remaining steps then take longer than any drain.
"""


@contextmanager
def held(config: Path, step: int) -> Iterator[None]:
    """Hold all images of this configuration's workers at that step, and upscaled images before a
    tile.

    Each image has a snapshot of that step, whatever it costs.
    """
    file = _file(config)
    written = file.with_suffix(".new")
    written.write_text(str(step))
    written.rename(file)
    try:
        yield
    finally:
        file.unlink()


def pace() -> None:
    """Patch this process for `held`."""
    from workers.engine.step_loop import StepInFlight, StepLoop
    from workers.engine.upscaling import Upscaling
    from workers.pool.snapshot_budget import Account

    file = _file(Path(os.environ["ATELIER_CONFIG"]))
    settle, draw, pays = StepLoop._settle, Upscaling._upscale_tile, Account.pays

    def last_step() -> int | None:
        try:
            return int(file.read_text())
        except FileNotFoundError:
            return None

    def held_settle(loop: StepLoop, sent: StepInFlight) -> None:
        if file.exists():
            time.sleep(PACE_S)
        while (last := last_step()) is not None:
            waiting = [
                row for row in sent.batch.rows if row.image_done >= last and not row.canceled
            ]
            if not waiting:
                break
            for row in waiting:
                row.on_step(row)  # once more: a snapshot may have been under way the first time
            time.sleep(PACE_S)
        settle(loop, sent)

    def held_draw(*args: Any) -> None:
        while file.exists():
            time.sleep(PACE_S)
        draw(*args)

    def held_pays(*args: Any) -> bool:
        return file.exists() or pays(*args)

    for owner, name, method in (
        (StepLoop, "_settle", held_settle),
        (Upscaling, "_draw", held_draw),
        (Account, "pays", held_pays),
    ):
        setattr(owner, name, method)


def _file(config: Path) -> Path:
    return config.with_name("held")


if __name__ == "__main__":
    import atelier

    pace()
    sys.exit(atelier.main())
