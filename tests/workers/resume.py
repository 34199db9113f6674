"""An image that is kept midway, and what another engine makes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from workers.engine.engine import Engine, EngineOutput
from workers.engine.row import Row
from workers.engine.snapshot import Origin, RowSnapshot, from_bytes, to_bytes

ATTEMPTS = 5


async def disturbed_at(
    step: int, engine: Engine, fields: Mapping[str, Any], images: Mapping[str, bytes]
) -> tuple[EngineOutput, RowSnapshot]:
    """The whole image, and what was kept of it after that step or a little later, from its file.

    The engine may be faster than the copy: then once more, which draws the same.
    """
    for _ in range(ATTEMPTS):
        picture, kept = await _kept_at(step, engine, fields, images)
        if kept.done < picture.steps:
            assert step <= kept.done
            return picture, kept
    raise AssertionError("nothing is ever left to be done: choose a step well before the last")


async def _kept_at(
    step: int, engine: Engine, fields: Mapping[str, Any], images: Mapping[str, bytes]
) -> tuple[EngineOutput, RowSnapshot]:
    keeping: list[asyncio.Task[RowSnapshot]] = []

    def on_step(row: Row) -> None:
        if row.done >= step and not keeping:
            keeping.append(asyncio.create_task(engine.take_snapshot(row)))

    picture = await engine.generate(fields, images, on_step)
    origin = Origin.of(engine.pipeline.spec.fingerprint, fields, engine.batching)
    return picture, from_bytes(to_bytes(await keeping[0], origin), origin)
