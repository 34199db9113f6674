"""Snapshot of an image midway, for another engine to resume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.workers.observing import Observing
from workers.engine.engine import Engine
from workers.engine.generation import EngineOutput
from workers.engine.row import Row
from workers.engine.snapshot import Origin, RowSnapshot, from_bytes, to_bytes

ATTEMPTS = 5


async def disturbed_at(
    step: int, engine: Engine, fields: Mapping[str, Any], images: Mapping[str, bytes]
) -> tuple[EngineOutput, RowSnapshot]:
    """Return the complete image, and its snapshot from a file, taken at `step` or slightly later.

    The engine may finish before the copy. It then draws the same image once more.
    """
    for _ in range(ATTEMPTS):
        picture, snapshot = await _kept_at(step, engine, fields, images)
        if snapshot.done < picture.steps:
            assert step <= snapshot.done
            return picture, snapshot
    raise AssertionError("nothing is ever left to be done: choose a step well before the last")


async def _kept_at(
    step: int, engine: Engine, fields: Mapping[str, Any], images: Mapping[str, bytes]
) -> tuple[EngineOutput, RowSnapshot]:
    tasks: list[asyncio.Task[RowSnapshot]] = []

    def on_step(row: Row) -> None:
        if row.done >= step and not tasks:
            tasks.append(asyncio.create_task(engine.take_snapshot(row)))

    picture = await engine.generate(fields, images, Observing(on_step))
    origin = Origin.of(engine.pipeline.spec.fingerprint, fields, engine.batching)
    return picture, from_bytes(to_bytes(await tasks[0], origin), origin)
