"""Backend that generates one image at a time by a diffusers pipeline, in a thread of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from models.interface.pipeline import Fields
from models.spec.model_spec import Task
from models.spec.passes import steps_of
from service.jobs.model.job import JobError
from workers import metrics
from workers.diffusers.call import arguments, pixels_of, stand_ins
from workers.diffusers.load import LoadedPipelines
from workers.diffusers.steps import Canceled, PipelineRow, StepHook
from workers.engine.errors import EngineFailed, GenerationFailed, generation_errors
from workers.engine.generation import Draft, EngineOutput, ImageRequest
from workers.engine.observer import UNOBSERVED, Observer
from workers.engine.snapshot import RowSnapshot
from workers.engine.uncompiled import ImageCosts, NoAdapters, NoSteps, NoUpscalers, TrialRuns
from workers.programs.batch_sizes import exact

T = TypeVar("T")

UNSUPPORTED = GenerationFailed(
    JobError(code="invalid_request", message="a diffusers model cannot stop and resume")
)


class DiffusersEngine:
    """Backend of one model's pipelines. Use it from one event loop."""

    slots = 1

    def __init__(self, pipelines: LoadedPipelines) -> None:
        self.pipeline = pipelines
        self.place = pipelines.place
        self.batching = exact()
        self.costs = ImageCosts(pipelines.spec)
        self.readiness = TrialRuns(self._try_steps)
        self.adapters, self.upscalers, self.step_loop = NoAdapters(), NoUpscalers(), NoSteps()
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[EngineFailed] = self._loop.create_future()
        self._thread = ThreadPoolExecutor(1, "diffusers")
        scheduler = getattr(pipelines.default, "scheduler", None)
        self._hook = None if scheduler is None else StepHook(scheduler)
        metrics.slots.labels(pipelines.spec.name).set(1)

    async def generate(
        self,
        fields: Fields,
        images: Mapping[str, bytes],
        observer: Observer = UNOBSERVED,
        begin: RowSnapshot | None = None,
        tenant: str = "",
    ) -> EngineOutput:
        """Generate one image or video from its first step. To cancel it, cancel the task.

        Raises:
            GenerationFailed: the pipeline rejects the request, or fails.
            EngineFailed: the device can be used no more.
        """
        row = self._new_row(fields, observer)
        with observer.timed(self.pipeline.spec.name, "denoise"):
            pixels, seconds = await self._in_thread(self._called, fields, images, row, row=row)
        if pixels is None:
            raise UNSUPPORTED
        return EngineOutput(pixels, fields["seed"], row.done, seconds, seconds)

    async def _try_steps(self, fields: Fields, steps: int) -> None:
        """Run the first steps of a warm-up request. Raises: as `generate`."""
        row = self._new_row(fields, UNOBSERVED)
        images = stand_ins(self.pipeline.spec)
        few = {**fields, "num_inference_steps": min(steps, fields["num_inference_steps"])}
        await self._in_thread(self._called, few, images, row, row=row)

    def _new_row(self, fields: Fields, observer: Observer) -> PipelineRow:
        observer.on_stage("denoising")

        def report(row: PipelineRow) -> None:
            self._loop.call_soon_threadsafe(observer.on_step, row)
            if row.all_sent:
                self._loop.call_soon_threadsafe(observer.on_stage, "decoding")

        size = fields["width"], fields["height"]
        preview = partial(self.pipeline.preview, self._pipeline_of(fields), size)
        return PipelineRow(steps_of(fields, self.pipeline.spec), report, preview)

    def _pipeline_of(self, fields: Fields) -> Any:
        by_task = self.pipeline.by_task
        task: Task = "inpainting" if "mask_image" in fields else "image-to-image"
        return (
            by_task.get(task, self.pipeline.default) if "image" in fields else self.pipeline.default
        )

    def _called(
        self, fields: Fields, images: Mapping[str, bytes], row: PipelineRow
    ) -> tuple[np.ndarray | None, float]:
        """Call the pipeline in its thread; return the pixels and the seconds that it took."""
        pipeline = self._pipeline_of({**fields, **images})
        row.times[:] = [time.perf_counter()]
        kwargs = arguments(pipeline, fields, images, self.pipeline.spec.fields)
        if self._hook:
            self._hook.row = row
        try:
            output = pipeline(**kwargs)
        except Canceled:
            return None, row.claim_seconds
        except ValueError as error:
            if row.done:
                raise
            rejected = JobError(code="invalid_request", message=str(error))
            raise GenerationFailed(rejected) from error
        finally:
            if self._hook:
                self._hook.row = None
            row.end()
            pipeline.maybe_free_model_hooks()
        pixels = pixels_of(output)
        row.times.append(time.perf_counter())
        self.costs.record(fields, row.times)
        return pixels, row.times[-1] - row.times[0]

    async def _in_thread(
        self, function: Callable[..., T], *args: Any, row: PipelineRow | None = None
    ) -> T:
        """Run a function in the pipeline's thread, after those before it; cancel a row with it."""
        if self.failure.done():
            raise self.failure.result()
        try:
            with generation_errors("generating the image"):
                return await self._loop.run_in_executor(self._thread, converted, function, *args)
        except EngineFailed as error:
            if not self.failure.done():
                self.failure.set_result(error)
            raise
        finally:
            if row is not None:
                row.canceled = True

    async def draft(
        self, request: ImageRequest, stop_at: int, observer: Observer = UNOBSERVED
    ) -> Draft:
        """Raise GenerationFailed: admission refuses such requests."""
        raise UNSUPPORTED

    async def position(self, request: ImageRequest, drafted: Fields, done: int) -> int:
        """Raise GenerationFailed: admission refuses such requests."""
        raise UNSUPPORTED

    async def preview(self, row: PipelineRow) -> np.ndarray | None:
        """Return a preview made after the row's next step; None: there is none."""
        wanted: Future[np.ndarray | None] = Future()
        row.preview = wanted
        if row.is_ended:
            return None
        return await asyncio.wrap_future(wanted)

    async def take_snapshot(self, row: PipelineRow) -> RowSnapshot:
        """Raise GenerationFailed: a pipeline's state cannot be copied."""
        raise UNSUPPORTED

    async def offload_weights(self) -> None:
        """Move the weights to host memory, once the image in progress has ended."""
        await self._in_thread(self._move, "cpu")

    async def reload_weights(self, keep_copies: bool = True) -> float:
        """Move the weights back to the device; return the seconds."""
        return await self._in_thread(self._move, self.pipeline.device)

    def _move(self, device: torch.device | str) -> float:
        began = time.perf_counter()
        if not self.pipeline.offloads:
            self.pipeline.default.to(device)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return time.perf_counter() - began

    def close(self) -> None:
        """Accept no more images; the one in progress ends with its next step."""
        if self._hook and self._hook.row:
            self._hook.row.canceled = True
        self._thread.shutdown(wait=False, cancel_futures=True)


def converted(function: Callable[..., T], *args: Any) -> T:
    """Call a function with torch's errors as those of the engine.

    Raises: MemoryError: the device's memory is exhausted; EngineFailed: its driver has failed.
    """
    try:
        return function(*args)
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise MemoryError(str(error)) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise MemoryError(str(error)) from error
        if isinstance(error, torch.AcceleratorError):
            raise EngineFailed(f"the device failed: {error}") from error
        raise
