"""Checks of outputs by the operator's safety hook, before anything of them is stored.

On a slice of several hosts the leader alone runs jobs, so it alone asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np

from models.spec.request_images import without_images
from service.jobs.model.job import Job, JobError
from service.safety.checker import SafetyChecker
from service.safety.question import Question, ShownImage
from service.safety.verdict import SafetyRefused
from workers.engine.errors import GenerationFailed
from workers.media import image

OutputCheck = Callable[[Job, int, np.ndarray], Awaitable[None]]
"""Check the pixels of a job's image or video. Raises: GenerationFailed, SafetyAbsent."""

FORMAT = "png"
"""Format that the hook is shown: lossless, whatever the request asks for."""


async def no_check(job: Job, number: int, pixels: np.ndarray) -> None:
    """Allow everything: there is no hook."""


class OutputChecks:
    """Shows the hook the pixels, and ends the job that it refuses.

    Args:
        max_frames: of a video that are shown.
    """

    def __init__(self, checker: SafetyChecker, max_frames: int) -> None:
        self._checker = checker
        self._max_frames = max_frames

    async def __call__(self, job: Job, number: int, pixels: np.ndarray) -> None:
        """Ask about one image or video.

        Raises:
            GenerationFailed: the hook refuses it.
            SafetyAbsent: it gives no verdict, and the policy refuses.
        """
        shown = await asyncio.to_thread(lambda: tuple(_shown(pixels, self._max_frames)))
        question = Question("after", job.tenant, job.model, _fields(job), shown, job.id, number)
        try:
            await self._checker.check(question, job.tenant)
        except SafetyRefused as refused:
            message = f"this server's safety check refuses the output: {refused}"
            raise GenerationFailed(JobError(code="refused_by_safety", message=message)) from None


def _fields(job: Job) -> dict[str, Any]:
    request = without_images(job.request)
    request.pop("webhook", None)
    return request


def _shown(pixels: np.ndarray, max_frames: int) -> Iterator[ShownImage]:
    content_type = image.CONTENT_TYPES[FORMAT]
    if pixels.ndim == 3:
        yield ShownImage("output", content_type, image.encode(pixels, FORMAT))
        return
    chosen = np.linspace(0, len(pixels) - 1, min(max_frames, len(pixels))).round().astype(int)
    for frame in chosen.tolist():
        yield ShownImage("output", content_type, image.encode(pixels[frame], FORMAT), frame)
