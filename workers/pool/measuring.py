"""Measuring of a pool's warm-up requests: alone before it is ready, in larger batches after."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence

from models.interface.pipeline import Fields
from models.spec.model_spec import Batching
from workers.engine.engine import Engine
from workers.engine.errors import NON_FINITE, EngineDied, GenerationFailed
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.step_latency import TRIALS

FEW_S = 5.0
"""Longest trial, by estimate, that readiness waits for; what takes longer is measured when it
comes."""
HELD_S = 20.0
"""Time that readiness waits for a trial whose estimate was wrong."""
BATCHES_S = 10.0
"""Maximum time of a warm-up request for larger batches."""
ROUNDS = 20
"""Maximum number of batches: a size that is judged too slow may never come up."""

NO_NUMBERS = (
    "no warm-up request gave finite numbers: the checkpoint's weights are damaged, or its dtype is"
    " too narrow for it (models.*.dtype, activation_dtype)"
)

log = logging.getLogger(__name__)


Known = Collection[tuple[str, int]]
"""Buckets, and sizes of batches of these."""


class Trials:
    """Trials of the requests that a pool warms up by.

    A request that fails is only logged: one of a user may do better.

    Args:
        expected_s: of each request's trial alone, by estimate.
    """

    held_s: float | None = HELD_S
    """Longest time of a trial alone; None: as long as it takes."""

    def __init__(
        self, engine: Engine, requests: Sequence[Fields], expected_s: Sequence[float]
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._expected_s = expected_s
        self._alone: list[tuple[Fields, BucketPrograms]] = []
        """Requests that were tried alone, and their programs."""

    async def alone(self) -> str | None:
        """Run each request alone for a few steps, unless that takes long.

        Returns why no client can be served, where every one was run and none gave finite numbers.
        """
        started, broken = time.monotonic(), 0
        for fields, expected_s in zip(self._requests, self._expected_s, strict=True):
            if expected_s > FEW_S:
                log.info("a trial takes about %.0f s: it is measured when it comes", expected_s)
                continue
            try:
                async with asyncio.timeout(self.held_s):
                    self._alone.append((fields, await _alone(self._engine, fields)))
            except TimeoutError:
                log.info("a trial takes more than %s s, not %.1f", self.held_s, expected_s)
            except GenerationFailed as failure:
                log.warning("a warm-up request failed: %s", failure, exc_info=failure)
                broken += failure.error.code == NON_FINITE
            except EngineDied:
                return None  # whoever waits for that hears of it
        log.info("measured its warm-up requests in %.1f s", time.monotonic() - started)
        return NO_NUMBERS if broken and broken == len(self._requests) else None

    async def batches(self, known: Known = ()) -> None:
        """Run those that were tried alone for a few steps in larger batches, once these compile.

        Args:
            known: what others have measured lately, which is not tried.
        """
        await self._engine.larger_ready(self._requests)
        for fields, programs in self._alone:
            bucket = self._engine.costs.bucket(fields)
            if all((bucket, size) in known for size in sizes(programs)):
                continue
            try:
                async with asyncio.timeout(BATCHES_S):
                    for number in range(ROUNDS):
                        if sizes_left := programs.untried:
                            count = sizes_left[-1 - number % len(sizes_left)]
                            await _together(self._engine, fields, count)
            except TimeoutError:
                log.info("larger batches are measured when they come")
            except GenerationFailed as failure:
                log.warning("a batch of warm-up requests failed: %s", failure, exc_info=failure)
            except EngineDied:
                return


async def closeness(engine: Engine, requests: Sequence[Fields]) -> Batching:
    """Return what clients are told where batches have several sizes.

    Measured on the first request; a failure is only logged.
    """
    levels = None
    try:
        if requests:
            levels = await engine.levels(requests[0])
    except Exception as error:
        log.warning("how near batches of other sizes come is not known: %s", error)
    log.info("images differ with their company, that of the warm-up by %s levels", levels)
    return Batching(mode="fast", levels=levels)


def sizes(programs: BucketPrograms) -> frozenset[int]:
    """Return the batch sizes that it has programs for."""
    return frozenset(
        batch_layout.size
        for phase in programs.phases.values()
        for batch_layout in phase.batch_layouts
    )


async def _alone(engine: Engine, fields: Fields) -> BucketPrograms:
    """Try a request out, once more by another seed where it gave no finite numbers.

    That may be the seed's or a moment's fault, and not the weights'. Raises: as `Engine.try_out`.
    """
    try:
        return await engine.try_out(fields, TRIALS)
    except GenerationFailed as failure:
        if failure.error.code != NON_FINITE:
            raise
        log.warning("a warm-up request failed and is tried by another seed: %s", failure)
        return await engine.try_out({**fields, "seed": (fields.get("seed") or 0) ^ 1}, TRIALS)


async def _together(engine: Engine, fields: Fields, count: int) -> None:
    """Try out so many images whose steps begin at once. Raises: the first failure."""
    begin = asyncio.Barrier(count)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(engine.try_out(fields, 2 * TRIALS, begin))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
