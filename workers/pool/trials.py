"""Measurement of a worker's warm-up requests: alone before it is ready, in larger batches later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence

from models.interface.pipeline import Fields
from models.spec.model_spec import Batching
from workers.engine.backend import Backend, TriedPrograms
from workers.engine.errors import NON_FINITE, EngineFailed, GenerationFailed
from workers.programs.step_latency import TRIALS

SHORT_TRIAL_S = 5.0
"""Longest estimated trial that delays readiness; slower requests are measured when they are served.
"""
TRIAL_TIMEOUT_S = 20.0
"""Timeout of a trial whose estimate was too low."""
BATCHES_S = 10.0
"""Maximum seconds per warm-up request for larger batches."""
ROUNDS = 20
"""Maximum number of batches: a size judged too slow may never be chosen."""

NO_NUMBERS = (
    "no warm-up request gave finite numbers: the checkpoint's weights are damaged, or its dtype is"
    " too narrow for it (models.*.dtype, activation_dtype)"
)

log = logging.getLogger(__name__)


MeasuredSizes = Collection[tuple[str, int]]
"""Buckets with batch sizes that are already measured."""


class Trials:
    """Trial runs of a worker's warm-up requests.

    A failed request is only logged, since users' requests may succeed.

    Args:
        expected_s: estimated seconds of each request's trial alone.
    """

    timeout_s: float | None = TRIAL_TIMEOUT_S
    """Timeout of a trial of one request alone; None: unlimited."""

    def __init__(
        self, engine: Backend, requests: Sequence[Fields], expected_s: Sequence[float]
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._expected_s = expected_s
        self._solo_programs: list[tuple[Fields, TriedPrograms]] = []
        """Requests already tried alone, and their programs."""

    async def run_alone(self) -> str | None:
        """Run each request alone for a few steps, unless it is expected to take long.

        Returns the reason to serve no clients, if every request ran and none gave finite numbers.
        """
        started, broken = time.monotonic(), 0
        for fields, expected_s in zip(self._requests, self._expected_s, strict=True):
            if expected_s > SHORT_TRIAL_S:
                log.info(
                    "a trial takes about %.0f s: requests like it are measured when served",
                    expected_s,
                )
                continue
            try:
                async with asyncio.timeout(self.timeout_s):
                    self._solo_programs.append((fields, await _alone(self._engine, fields)))
            except TimeoutError:
                log.info("a trial takes more than %s s, not %.1f", self.timeout_s, expected_s)
            except GenerationFailed as failure:
                log.warning("a warm-up request failed: %s", failure, exc_info=failure)
                broken += failure.error.code == NON_FINITE
            except EngineFailed:
                return None  # reported by `Engine.failure`
        log.info("measured its warm-up requests in %.1f s", time.monotonic() - started)
        return NO_NUMBERS if broken and broken == len(self._requests) else None

    async def run_batches(self, measured: MeasuredSizes = ()) -> None:
        """Run the requests tried alone for a few steps in larger batches, once those compile.

        Args:
            measured: recent measurements of other workers, which are skipped.
        """
        await self._engine.readiness.larger_ready(self._requests)
        for fields, programs in self._solo_programs:
            bucket = self._engine.costs.bucket(fields)
            if all((bucket, size) in measured for size in sizes(programs)):
                continue
            try:
                async with asyncio.timeout(BATCHES_S):
                    for number in range(ROUNDS):
                        if sizes_left := programs.untried:
                            count = sizes_left[-1 - number % len(sizes_left)]
                            await _together(self._engine, fields, count)
            except TimeoutError:
                log.info("larger batches are measured when served")
            except GenerationFailed as failure:
                log.warning("a batch of warm-up requests failed: %s", failure, exc_info=failure)
            except EngineFailed:
                return


async def closeness(engine: Backend, requests: Sequence[Fields]) -> Batching:
    """Measure how much an image depends on its batch, for the model's public facts.

    Uses the first request; a failure is only logged.
    """
    levels = None
    try:
        if requests:
            levels = await engine.readiness.levels(requests[0])
    except Exception as error:
        log.warning("the difference between batch sizes cannot be measured: %s", error)
    log.info("images depend on their batch: the warm-up's differs by %s levels", levels)
    return Batching(mode="fast", levels=levels)


def sizes(programs: TriedPrograms) -> frozenset[int]:
    """Return the batch sizes for which a bucket has compiled programs."""
    return frozenset(
        batch_layout.size
        for step_kind in programs.step_kinds.values()
        for batch_layout in step_kind.batch_layouts
    )


async def _alone(engine: Backend, fields: Fields) -> TriedPrograms:
    """Try a warm-up request alone; if its numbers are not finite, retry with another seed.

    The seed or a transient fault may be the cause, and not the weights. Raises: as
    `Engine.try_out`.
    """
    try:
        return await engine.readiness.try_out(fields, TRIALS)
    except GenerationFailed as failure:
        if failure.error.code != NON_FINITE:
            raise
        log.warning("a warm-up request failed and is retried with another seed: %s", failure)
        return await engine.readiness.try_out(
            {**fields, "seed": (fields.get("seed") or 0) ^ 1}, TRIALS
        )


async def _together(engine: Backend, fields: Fields, count: int) -> None:
    """Try `count` images of a request whose steps begin together. Raises: the first failure."""
    begin = asyncio.Barrier(count)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(engine.readiness.try_out(fields, 2 * TRIALS, begin))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
