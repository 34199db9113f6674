"""Progress: how far a job is, told to the queue without holding the job up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from service.jobs.model.job import STAGES, Stage
from service.jobs.model.previews import is_due
from service.jobs.queue import Claim, Doing, Queue
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.media import outputs
from workers.pool.usage import Bill
from workers.retry import QUEUE_ERRORS

MIN_INTERVAL_S = 0.05
"""Minimum interval between two messages of one job: faster steps are reported together."""

log = logging.getLogger(__name__)


class Progress:
    """Progress of one job, over all its images. Only the latest state is sent.

    Args:
        preview_every_s: 0: no previews, not even those that the client has asked for.
        on_lost: told once if the claim is no longer ours.
    """

    def __init__(
        self,
        queue: Queue,
        claim: Claim,
        engine: Engine,
        preview_every_s: float,
        on_lost: Callable[[Claim], None],
        bill: Bill,
    ) -> None:
        self._bill = bill
        self._queue = queue
        self._claim = claim
        self._engine = engine
        self._preview_every_s = preview_every_s
        self._on_lost = on_lost
        self._previewed_at = time.monotonic()
        self._previews = 0
        """Previews that were made."""
        self._done = [0] * claim.job.images
        for snapshot in claim.job.snapshots:
            self._done[snapshot.index] = snapshot.step
        self._reported = list(self._done)
        """Steps that the queue knows of."""
        self._latest: Row | None = None
        self._doing: dict[int, Doing] = {}
        """Stages of the images that have begun."""
        self._reported_stage: Doing | None = None
        self._news = asyncio.Event()
        self._closing = asyncio.Event()

    def step(self, picture: int, row: Row) -> None:
        """Count one image's step. To be called in the event loop."""
        self._done[picture] = row.image_done
        self._latest = row
        self._news.set()

    def stage(self, picture: int, stage: Stage, expected_s: float | None = None) -> None:
        """Set one image's stage. To be called in the event loop."""
        self._doing[picture] = Doing(stage, expected_s)
        self._news.set()

    def close(self) -> None:
        """End `run`, once it has reported what it has not reported yet."""
        self._closing.set()
        self._news.set()

    async def run(self) -> None:
        """Tell what there is to tell."""
        is_last = False
        while not is_last:
            await self._news.wait()
            self._news.clear()
            is_last = self._closing.is_set()
            if self._has_news(is_last) and not await self._tell(self._latest):
                self._on_lost(self._claim)
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._pause_s)

    def _has_news(self, is_last: bool) -> bool:
        """Return whether there is something to tell; a stage is past when the job is about to end.

        Its end would wait for that, and whoever waits for its end be woken once more.
        """
        is_in_another_stage = self._now_doing != self._reported_stage
        return self._done != self._reported or (is_in_another_stage and not is_last)

    @property
    def _pause_s(self) -> float:
        """No pause while asked-for previews are missing: a short job would be done meanwhile."""
        wanted = self._claim.job.previews if self._preview_every_s else 0
        return MIN_INTERVAL_S if self._previews >= wanted else 0

    @property
    def _now_doing(self) -> Doing | None:
        """The least advanced of its images."""
        return min(self._doing.values(), key=lambda doing: STAGES.index(doing.stage), default=None)

    async def _tell(self, row: Row | None) -> bool:
        """False: the claim is no longer ours."""
        steps = row.image_steps * len(self._done) if row else self._claim.job.steps
        preview = await self._preview(row) if row else None
        done, doing = list(self._done), self._now_doing
        try:
            spent = self._bill.spent
            is_held = await self._queue.progress(
                self._claim, sum(done), steps, preview, doing, spent
            )
            self._reported, self._reported_stage = done, doing
            return is_held
        except QUEUE_ERRORS as error:
            log.info("progress of %s cannot be told: %s", self._claim.job.id, error)
            return True

    def _is_preview_due(self, row: Row) -> bool:
        if not self._preview_every_s:
            return False
        if time.monotonic() - self._previewed_at >= self._preview_every_s:
            return True
        steps = row.image_steps * len(self._done)
        return is_due(self._claim.job.previews, self._previews, sum(self._done), steps)

    async def _preview(self, row: Row) -> str | None:
        """A data URI if one is due. An image without a preview is no worse."""
        if row.all_sent or not self._is_preview_due(row):
            return None
        self._previewed_at = time.monotonic()
        self._previews += 1
        try:
            pixels = await self._engine.preview(row)
        except Exception:
            log.exception("a preview of %s failed", self._claim.job.id)
            return None
        return await asyncio.to_thread(outputs.preview, pixels, self._claim.job.request)
