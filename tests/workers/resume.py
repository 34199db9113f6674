"""An image that is kept midway, and what another engine makes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from workers.engine.engine import Engine, EngineOutput
from workers.engine.row import Row
from workers.engine.snapshot import Origin, RowSnapshot, from_bytes, to_bytes


async def disturbed_at(
    step: int, engine: Engine, fields: Mapping[str, Any], images: Mapping[str, bytes]
) -> tuple[EngineOutput, RowSnapshot]:
    """The whole image, and what was kept of it after that step or a little later, from its file.

    The engine may not be faster than the copy: choose a step well before the last.
    """
    keeping: list[asyncio.Task[RowSnapshot]] = []

    def on_step(row: Row) -> None:
        if row.done >= step and not keeping:
            keeping.append(asyncio.create_task(engine.take_snapshot(row)))

    picture = await engine.generate(fields, images, on_step)
    origin = Origin.of(engine.pipeline.spec.fingerprint, fields, engine.batching)
    kept = from_bytes(to_bytes(await keeping[0], origin), origin)
    assert step <= kept.done < picture.steps, "nothing is left to be done"
    return picture, kept
