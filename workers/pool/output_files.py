"""Output files of one running job: checked, encoded, stored, and deleted if the claim is lost.

On a slice of several hosts only the leader runs jobs, so only the leader calls the safety hook.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from models.spec.request_images import without_images
from service.jobs.model.job import Job, JobError, Output
from service.jobs.storage.object_store import SMALL_IMAGE_TYPE, job_folders, output_key, sibling_key
from service.recipes.files import read_recipe
from service.recipes.recipe import Recipe, repeatable
from service.safety.checker import SafetyChecker
from service.safety.safety_check import SafetyCheck, ShownImage
from service.safety.verdict import SafetyRefused
from workers.engine.errors import GenerationFailed
from workers.engine.generation import EngineOutput
from workers.engine.stage_timing import InterleavedTimer
from workers.media import image
from workers.media.outputs import File, count, files, preview_fps
from workers.media.video import Sound
from workers.pool.job_context import JobContext
from workers.retry import until_reached

CHECK_FORMAT = "png"
"""Lossless format of images sent to the safety hook, regardless of the request's format."""


class OutputFiles:
    """Writer of one job's output files to the store."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._storing: set[asyncio.Task[None]] = set()
        self._stored: list[str] = []
        """Keys of files that are stored or being stored."""

    async def save(
        self, number: int, recipe: Recipe, seed: int, generated: EngineOutput
    ) -> list[Output]:
        """Check, encode and store one image's files, one at a time to save memory.

        Steps continue meanwhile.

        Raises: GenerationFailed, NoVerdict: the check fails; StoreError.
        """
        job, worker = self._context.job, self._context.worker
        await worker.check(job, number, generated.pixels)
        rate_hz = worker.engine.pipeline.spec.sound_hz
        sound = None if generated.sound is None or not rate_hz else Sound(generated.sound, rate_hz)
        request = job.request
        if generated.pixels.ndim == 4 and job.stop_at_step:
            request = {**request, "fps": preview_fps(generated.pixels, request)}
        encoding = files(generated.pixels, request, recipe, worker.marking, sound)
        timer = InterleavedTimer(job.model)
        each = count(generated.pixels, job.request)
        outputs: list[Output] = []
        with timer:
            for index in range(number * each, (number + 1) * each):
                file = await self._next_file(encoding, timer)
                with timer.of("store"):
                    key = await self.put(index, file.content_type, file.data, file.small_images)
                    outputs.append(file.described(index, key, seed, worker.made_by))
        return outputs

    async def _next_file(self, encoding: Iterator[File], timer: InterleavedTimer) -> File:
        with timer.of("media"):
            return await asyncio.to_thread(next, encoding)

    async def encode_again(self, output: Output, data: bytes) -> Output | None:
        """Store the image of another job's lossless file in this job's format, with its recipe.

        Returns None if the file does not contain the recipe and the exact pixels.

        Raises: StoreError.
        """
        file = await asyncio.to_thread(self._encoded_again, data)
        if file is None or file.pixels_sha256 != output.pixels_sha256:
            return None
        key = await self.put(output.index, file.content_type, file.data, {})
        return file.described(output.index, key, output.seed, output.made_by)

    def _encoded_again(self, data: bytes) -> File | None:
        request, recipe = self._context.job.request, read_recipe(data)
        if recipe is None:
            return None
        fields = {**recipe.request, "output": repeatable(request)["output"]}
        recipe = recipe.model_copy(update={"request": fields})
        marking = self._context.worker.marking
        return next(files(image.decode(data), request, recipe, marking))

    async def put(
        self, index: int, content_type: str, data: bytes, small_files: Mapping[str, bytes]
    ) -> str:
        """Store a file with the small images of a video; return its key. Raises: StoreError."""
        until_stored = self._context.worker.patience.until_stored
        key = output_key(self._context.job.id, self._context.claim.fence, index, content_type)
        await until_stored(self._put, key, data, content_type)
        for name, small in small_files.items():
            await until_stored(self._put, sibling_key(key, name), small, SMALL_IMAGE_TYPE)
        return key

    async def _put(self, key: str, data: bytes, content_type: str) -> None:
        """Store an output file to the end, even if the job is canceled: writes cannot be undone."""
        self._stored.append(key)
        put = self._context.worker.store.put(key, data, content_type)
        storing = asyncio.create_task(put)
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        await asyncio.shield(storing)

    async def clear_up(self) -> None:
        """Delete the stored files of a job whose claim is no longer valid.

        If the job was deleted, delete all its files. Otherwise delete files stored by this claim
        that belong to none of its finished images.

        Raises: StoreError.
        """
        await asyncio.gather(*self._storing, return_exceptions=True)
        worker, job_id = self._context.worker, self._context.job.id
        job = await until_reached(worker.queue.get, job_id)
        await worker.store.delete(job_folders(job_id) if job is None else self._unknown(job))

    def _unknown(self, job: Job) -> list[str]:
        """Return the keys stored by this claim that no finished image of the job has."""
        images = [job.outputs, *(snapshot.outputs for snapshot in job.snapshots)]
        output_keys = tuple(output.key for outputs in images for output in outputs)
        return [key for key in self._stored if not key.startswith(output_keys)]


class OutputChecks:
    """Client of the safety hook, which fails jobs that the hook refuses.

    Args:
        max_frames: maximum number of frames of a video to send.
    """

    def __init__(self, checker: SafetyChecker, max_frames: int) -> None:
        self._checker = checker
        self._max_frames = max_frames

    async def __call__(self, job: Job, number: int, pixels: np.ndarray) -> None:
        """Check one output image or video by the safety hook.

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
    content_type = image.CONTENT_TYPES[CHECK_FORMAT]
    if pixels.ndim == 3:
        yield ShownImage("output", content_type, image.encode(pixels, CHECK_FORMAT))
        return
    frames = np.linspace(0, len(pixels) - 1, min(max_frames, len(pixels))).round().astype(int)
    for frame in frames.tolist():
        yield ShownImage("output", content_type, image.encode(pixels[frame], CHECK_FORMAT), frame)
