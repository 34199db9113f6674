"""Quality measurement: regenerate a sample of preset outputs exactly while the devices are idle.

Served outputs and their requests are kept only in memory, and only until they are measured.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.interface.pipeline import Fields
from models.spec.quality_presets import EXACT
from service.tracing import spans
from service.tracing.log_context import hide_prompts
from workers.engine.backend import Backend
from workers.engine.errors import EngineFailed
from workers.engine.observer import TracedOnly
from workers.media.psnr import psnr_db
from workers.pool import metrics
from workers.pool.metrics import DROPPED, FAILED, MEASURED, NOT_COMPILED

MAX_BYTES = 256 * 2**20
"""Memory limit of the sample: a video of 81 frames at 720p, or eighty images of 1024 x 1024."""
MAX_ATTEMPTS = 3
"""Maximum attempts to measure an output; incoming jobs interrupt each attempt."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ServedOutput:
    """Output of a job as served, with its request, for measuring its quality."""

    fields: Fields
    """Resolved request of this image."""
    images: Mapping[str, bytes]
    tenant: str
    pixels: np.ndarray
    attempts: int = 0

    @property
    def preset(self) -> str:
        """Name of the preset that generated the output."""
        return self.fields.get("quality") or EXACT

    @property
    def bytes(self) -> int:
        """Bytes of the output and its input images in memory."""
        return self.pixels.nbytes + sum(map(len, self.images.values()))


class QualitySamples:
    """Sample of one engine's outputs, measured by PSNR against exact outputs.

    Args:
        share: sampled share of the outputs of presets other than `exact`; 0: no sample.
        max_bytes: size limit of the sample; the oldest outputs are dropped.
    """

    def __init__(self, engine: Backend, share: float, max_bytes: int = MAX_BYTES) -> None:
        spec = engine.pipeline.spec
        self._engine = engine
        self._model = spec.name
        self._share = share if spec.has_exact else 0.0
        self._max_bytes = max_bytes
        self._sample: deque[ServedOutput] = deque()
        """Sampled outputs, the oldest first."""
        self._offered = asyncio.Event()
        if self._share:
            metrics.expect_receipts(spec.name, spec.qualities)

    @property
    def bytes(self) -> int:
        """Total bytes of the sampled outputs in memory."""
        return sum(served.bytes for served in self._sample)

    def offer(self, served: ServedOutput) -> None:
        """Add a served output to the sample, at random."""
        if served.preset == EXACT or random.random() >= self._share:
            return
        if served.bytes > self._max_bytes:  # do not evict others for it
            metrics.receipts.labels(self._model, DROPPED).inc()
            return
        self._sample.append(served)
        while self.bytes > self._max_bytes:
            self._end(self._sample[0], DROPPED)
        self._offered.set()

    async def run(self) -> None:
        """Regenerate the sample, the oldest first, until canceled or the engine fails.

        After cancellation, the output in progress restarts in the next call.
        """
        while True:
            while self._sample:
                try:
                    await self._measure_next(self._sample[0])
                except EngineFailed:
                    return
            self._offered.clear()
            await self._offered.wait()

    async def _measure_next(self, served: ServedOutput) -> None:
        """Measure one sampled output, or drop it after too many attempts. Raises: EngineFailed."""
        served.attempts += 1
        if served.attempts > MAX_ATTEMPTS:
            return self._end(served, DROPPED)
        # A separate task, so that prompts do not accumulate in this task's context.
        outcome = await asyncio.create_task(self._measure(served))
        self._end(served, outcome)

    async def _measure(self, served: ServedOutput) -> str:
        """Regenerate a sampled output exactly, and record its PSNR. Raises: EngineFailed."""
        hide_prompts(served.fields)
        try:
            return await self._regenerate(served)
        except EngineFailed:
            raise
        except Exception as failure:
            log.warning(
                "the quality of an image with preset %r cannot be measured: %s",
                served.preset,
                failure,
            )
            return FAILED

    async def _regenerate(self, served: ServedOutput) -> str:
        """Regenerate an output if its exact programs are compiled. Raises: as `Engine.generate`."""
        fields = {**served.fields, "quality": EXACT}
        if not await self._engine.readiness.is_compiled(fields, served.images):
            return NOT_COMPILED
        with spans.span("receipt"):
            exact = await self._engine.generate(
                fields, served.images, TracedOnly(), tenant=served.tenant
            )
        quality_db = await asyncio.to_thread(psnr_db, served.pixels, exact.pixels)
        metrics.quality_psnr.labels(self._model, served.preset).observe(quality_db)
        return MEASURED

    def _end(self, served: ServedOutput, outcome: str) -> None:
        if served in self._sample:  # it may have been evicted
            self._sample.remove(served)
            metrics.receipts.labels(self._model, outcome).inc()
