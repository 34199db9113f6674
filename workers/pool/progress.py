"""Progress reports of a job to the queue, sent without delaying the job."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from service.jobs.model.job import STAGES, Stage
from service.jobs.model.previews import is_due
from service.jobs.queue import Claim, ClaimUsage, Queue, StageReport
from workers.engine.backend import Backend
from workers.engine.row import ImageRow
from workers.media import outputs
from workers.programs.compilation import Compilation
from workers.retry import QUEUE_ERRORS


class Bill:
    """Usage of device time and other resources by one claim, over all its images."""

    def __init__(self) -> None:
        self._image_s: dict[int, float] = {}
        self._compilations: list[Compilation] = []
        self._inputs_s = 0.0

    def read_inputs(self, cpu_s: float) -> None:
        """Record the CPU time of decoding and scaling the request's input images and videos."""
        self._inputs_s += cpu_s

    def step(self, image: int, row: ImageRow) -> None:
        """Record one image's device-seconds after a step."""
        self._image_s[image] = row.claim_seconds

    def finish(self, image: int, device_s: float) -> None:
        """Record the total device-seconds of a finished image."""
        self._image_s[image] = device_s

    def compile(self, compilation: Compilation) -> None:
        """Charge a compilation that this claim was the first to need, used or not."""
        self._compilations.append(compilation)

    @property
    def spent(self) -> ClaimUsage:
        """Device and compile time that the claim has used until now."""
        return self._with(sum(compilation.spent_s for compilation in self._compilations))

    @property
    def final(self) -> ClaimUsage:
        """Usage of a finished job, with estimates for its larger batches still compiling."""
        return self._with(sum(compilation.charge_s for compilation in self._compilations))

    def _with(self, compile_s: float) -> ClaimUsage:
        return ClaimUsage(self._inputs_s + compile_s + sum(self._image_s.values()), compile_s)

    @property
    def is_settled(self) -> bool:
        """Return whether none of the claim's compilations is running."""
        return all(compilation.is_over for compilation in self._compilations)

    async def settled(self) -> None:
        """Wait until none of the claim's compilations is running."""
        await asyncio.gather(*(compilation.over() for compilation in self._compilations))


MIN_INTERVAL_S = 0.05
"""Minimum seconds between two reports of one job; faster steps are reported together."""

log = logging.getLogger(__name__)


class Progress:
    """Progress reports of one job, over all its images. Only the latest state is sent.

    Args:
        preview_every_s: seconds between previews; 0: none, not even those the client requests.
        on_lost: called once if the claim is no longer valid.
    """

    def __init__(
        self,
        queue: Queue,
        claim: Claim,
        engine: Backend,
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
        """Number of previews generated so far."""
        self._done = [0] * claim.job.images
        for snapshot in claim.job.snapshots:
            self._done[snapshot.index] = snapshot.step
        self._reported = list(self._done)
        """Steps of each image last reported to the queue."""
        self._latest: ImageRow | None = None
        self._doing: dict[int, StageReport] = {}
        """Stages of the images that have begun."""
        self._reported_stage: StageReport | None = None
        self._news = asyncio.Event()
        self._closing = asyncio.Event()

    def step(self, image: int, row: ImageRow) -> None:
        """Record that an image finished a step. Call it in the event loop."""
        self._done[image] = row.image_done
        self._latest = row
        self._news.set()

    def stage(self, image: int, stage: Stage, expected_s: float | None = None) -> None:
        """Record the current stage of an image. Call it in the event loop."""
        self._doing[image] = StageReport(stage, expected_s)
        self._news.set()

    def close(self) -> None:
        """Make the job's `run` return after a final progress report."""
        self._closing.set()
        self._news.set()

    async def run(self) -> None:
        """Send the job's progress reports to the queue until closed."""
        is_last = False
        while not is_last:
            await self._news.wait()
            self._news.clear()
            is_last = self._closing.is_set()
            if self._has_news(is_last) and not await self._send_report(self._latest):
                self._on_lost(self._claim)
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._pause_s)

    def _has_news(self, is_last: bool) -> bool:
        """Return whether there is a change to report; a new stage at the job's end is not.

        Reporting it would delay the end, and wake clients that wait for the end once more.
        """
        is_in_another_stage = self._now_doing != self._reported_stage
        return self._done != self._reported or (is_in_another_stage and not is_last)

    @property
    def _pause_s(self) -> float:
        """Seconds between progress reports; 0 while requested previews are missing."""
        wanted = self._claim.job.previews if self._preview_every_s else 0
        return MIN_INTERVAL_S if self._previews >= wanted else 0

    @property
    def _now_doing(self) -> StageReport | None:
        """Stage of the job's least advanced image."""
        return min(self._doing.values(), key=lambda doing: STAGES.index(doing.stage), default=None)

    async def _send_report(self, row: ImageRow | None) -> bool:
        """Send a progress report; return False if the claim is no longer valid."""
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
            log.info("progress of %s cannot be reported: %s", self._claim.job.id, error)
            return True

    def _is_preview_due(self, row: ImageRow) -> bool:
        if not self._preview_every_s:
            return False
        if time.monotonic() - self._previewed_at >= self._preview_every_s:
            return True
        steps = row.image_steps * len(self._done)
        return is_due(self._claim.job.previews, self._previews, sum(self._done), steps)

    async def _preview(self, row: ImageRow) -> str | None:
        """Return a preview as a data URI if one is due and possible; failures are only logged."""
        if row.all_sent or not self._is_preview_due(row):
            return None
        self._previewed_at = time.monotonic()
        self._previews += 1
        try:
            pixels = await self._engine.preview(row, self._claim.job.tenant)
        except Exception:
            log.exception("a preview of %s failed", self._claim.job.id)
            return None
        if pixels is None:
            return None
        return await asyncio.to_thread(outputs.preview, pixels, self._claim.job.request)
