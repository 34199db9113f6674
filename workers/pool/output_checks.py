"""Checks of outputs by the operator's safety hook, before they are stored.

On a slice of several hosts only the leader runs jobs, so only the leader calls the hook.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np

from models.spec.request_images import without_images
from service.jobs.model.job import Job, JobError
from service.safety.checker import SafetyChecker
from service.safety.safety_check import SafetyCheck, ShownImage
from service.safety.verdict import SafetyRefused
from workers.engine.errors import GenerationFailed
from workers.media import image

OutputCheck = Callable[[Job, int, np.ndarray], Awaitable[None]]
"""Check of the pixels of a job's image or video. Raises: GenerationFailed, NoVerdict."""

FORMAT = "png"
"""Lossless format of images sent to the hook, regardless of the request's format."""


async def no_check(job: Job, number: int, pixels: np.ndarray) -> None:
    """Accept every output: no hook is configured."""


class OutputChecks:
    """Client of the safety hook, which fails jobs that the hook refuses.

    Args:
        max_frames: maximum number of frames of a video to send.
    """

    def __init__(self, checker: SafetyChecker, max_frames: int) -> None:
        self._checker = checker
        self._max_frames = max_frames

    async def __call__(self, job: Job, number: int, pixels: np.ndarray) -> None:
        """Check one image or video.

        Raises:
            GenerationFailed: the hook refuses it.
            NoVerdict: the hook gives no verdict, and the policy refuses.
        """
        samples = await asyncio.to_thread(lambda: tuple(_shown(pixels, self._max_frames)))
        question = SafetyCheck(
            "after", job.tenant, job.model, _fields(job), samples, job.id, number
        )
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
    frames = np.linspace(0, len(pixels) - 1, min(max_frames, len(pixels))).round().astype(int)
    for frame in frames.tolist():
        yield ShownImage("output", content_type, image.encode(pixels[frame], FORMAT), frame)
