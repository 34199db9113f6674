"""Receipts: a sample of what presets have drawn is drawn again exactly, while the devices are idle.

What was served, and the requests, are kept in memory alone, and no longer than until then.
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
from workers.engine.engine import Engine
from workers.engine.errors import EngineDied
from workers.engine.stage_timing import traced
from workers.media.psnr import psnr_db
from workers.pool import metrics
from workers.pool.metrics import DROPPED, FAILED, MEASURED, NOT_COMPILED

MAX_BYTES = 256 * 2**20
"""Memory of the sample: a video of 81 frames at 720p, or eighty images of 1024 x 1024."""
TRIES = 3
"""Number of times that one is begun: jobs that come break each of them off."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Served:
    """Image or video as it was served, with its request."""

    fields: Fields
    """The request as it was resolved, of this one alone."""
    images: Mapping[str, bytes]
    tenant: str
    pixels: np.ndarray
    tries: int = 0

    @property
    def preset(self) -> str:
        """Name of the preset that has drawn it."""
        return self.fields.get("quality") or EXACT

    @property
    def bytes(self) -> int:
        """Bytes of it in memory."""
        return self.pixels.nbytes + sum(map(len, self.images.values()))


class Receipts:
    """Sample of one engine's images, and the PSNR that their presets have kept.

    Args:
        share: of what is drawn by another preset than `exact`; 0: nothing is kept.
        max_bytes: of the sample; the oldest ones leave for new ones.
    """

    def __init__(self, engine: Engine, share: float, max_bytes: int = MAX_BYTES) -> None:
        spec = engine.pipeline.spec
        self._engine = engine
        self._model = spec.name
        self._share = share if spec.has_exact else 0.0
        self._max_bytes = max_bytes
        self._kept: deque[Served] = deque()
        """The oldest one first."""
        self._offered = asyncio.Event()
        if self._share:
            metrics.expect_receipts(spec.name, spec.qualities)

    @property
    def bytes(self) -> int:
        """Bytes of the sample."""
        return sum(served.bytes for served in self._kept)

    def offer(self, served: Served) -> None:
        """Take what was served into the sample, by chance."""
        if served.preset == EXACT or random.random() >= self._share:
            return
        if served.bytes > self._max_bytes:  # nothing else leaves for it
            metrics.receipts.labels(self._model, DROPPED).inc()
            return
        self._kept.append(served)
        while self.bytes > self._max_bytes:
            self._end(self._kept[0], DROPPED)
        self._offered.set()

    async def run(self) -> None:
        """Draw the sample again, the oldest one first, until canceled or the engine dies.

        What is being drawn then begins anew the next time.
        """
        while True:
            while self._kept:
                try:
                    await self._see_to(self._kept[0])
                except EngineDied:
                    return
            self._offered.clear()
            await self._offered.wait()

    async def _see_to(self, served: Served) -> None:
        """Raises: EngineDied."""
        served.tries += 1
        if served.tries > TRIES:
            return self._end(served, DROPPED)
        # In a task of its own, or the prompts of all would stay in this one's context.
        outcome = await asyncio.create_task(self._measure(served))
        self._end(served, outcome)

    async def _measure(self, served: Served) -> str:
        """Draw it exactly, and report the PSNR; return what came of it. Raises: EngineDied."""
        hide_prompts(served.fields)
        try:
            return await self._draw(served)
        except EngineDied:
            raise
        except Exception as failure:
            log.warning("what %r has kept of an image is not known: %s", served.preset, failure)
            return FAILED

    async def _draw(self, served: Served) -> str:
        """Raises: as `Engine.generate`."""
        fields = {**served.fields, "quality": EXACT}
        if not await self._engine.is_compiled(fields, served.images):
            return NOT_COMPILED
        with spans.span("receipt"):
            exact = await self._engine.generate(
                fields, served.images, tenant=served.tenant, timed=traced
            )
        kept_db = await asyncio.to_thread(psnr_db, served.pixels, exact.pixels)
        metrics.quality_psnr.labels(self._model, served.preset).observe(kept_db)
        return MEASURED

    def _end(self, served: Served, outcome: str) -> None:
        if served in self._kept:  # others may have taken its place
            self._kept.remove(served)
            metrics.receipts.labels(self._model, outcome).inc()
