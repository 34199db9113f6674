"""Backend that generates one image at a time by a diffusers pipeline, in a thread of its own.

A hook on the scheduler reports the steps: some pipelines have no `callback_on_step_end`, but all
call `scheduler.step`. The hook changes no value, so images keep their bytes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from models.interface.pipeline import Fields
from models.spec.model_spec import Task
from models.spec.passes import steps_of
from service.jobs.model.job import JobError
from workers.diffusers.adapters import LoraPaths, PipelineAdapters
from workers.diffusers.call import arguments, pixels_of, stand_ins
from workers.diffusers.load import LoadedPipelines
from workers.engine.adapters import LoraFiles, no_files
from workers.engine.errors import EngineFailed, GenerationFailed
from workers.engine.generation import EngineOutput
from workers.engine.observer import UNOBSERVED, Observer
from workers.engine.snapshot import RowSnapshot
from workers.engine.uncompiled import UNSUPPORTED, Canceled, UncompiledBackend, UncompiledRow

OnStep = Callable[[Callable[[], int], torch.Tensor, torch.Tensor], None]
"""Callback after a step: `steps_left` from it on, its latents, and its estimate of the clean ones;
the latents, if the scheduler has none."""


class StepHook:
    """Hook of one diffusers scheduler, which reports its steps.

    The scheduler gets a subclass of its class with another `step`. A pipeline may copy its
    scheduler; copies keep their state to themselves, and report nothing.
    """

    def __init__(self, scheduler: Any) -> None:
        self.on_step: OnStep | None = None
        original, kind = type(scheduler).step, type(scheduler)

        @functools.wraps(original)  # pipelines read its signature
        def step(hooked: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(hooked, *args, **kwargs)
            if self.on_step and hooked is scheduler:
                left = functools.partial(steps_left, hooked, args, kwargs)
                self.on_step(left, *_latents(output))
            return output

        scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "__module__": __name__})


def steps_left(scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many steps a schedule has from the first step's timestep on; 0: unknown."""
    timestep = kwargs.get("timestep", args[1] if len(args) > 1 else None)
    timesteps = getattr(scheduler, "timesteps", None)
    if timestep is None or timesteps is None:
        return 0
    equal = torch.as_tensor(timesteps == timestep).flatten().nonzero()
    return len(timesteps) - int(equal[0]) if len(equal) else 0


def _latents(output: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the latents in a scheduler's output, and the estimate of the clean ones, if any."""
    values = output if isinstance(output, tuple) else tuple(output.values())
    latents, *others = values
    clean = next((other for other in others if getattr(other, "shape", 0) == latents.shape), None)
    return latents, latents if clean is None else clean


class DiffusersEngine(UncompiledBackend):
    """Backend that generates images with one model's diffusers pipelines.

    Args:
        lora_files: resolves the adapters' files.
    """

    def __init__(self, pipelines: LoadedPipelines, lora_files: LoraFiles = no_files) -> None:
        super().__init__(pipelines.spec, self._try_steps)
        self.pipeline = pipelines
        self.place = pipelines.place
        self.adapters = PipelineAdapters(pipelines.spec.name, pipelines.default, lora_files)
        scheduler = getattr(pipelines.default, "scheduler", None)
        self._hook = None if scheduler is None else StepHook(scheduler)

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
        adapters = await self.adapters.find(fields, tenant)
        with observer.timed(self.pipeline.spec.name, "denoise"):
            return await self._run(fields, images, adapters, observer)

    async def _try_steps(self, fields: Fields, steps: int) -> None:
        """Run the first steps of a warm-up request. Raises: as `generate`."""
        few = {**fields, "num_inference_steps": min(steps, fields["num_inference_steps"])}
        await self._run(few, stand_ins(self.pipeline.spec), ())

    async def _run(
        self,
        fields: Fields,
        images: Mapping[str, bytes],
        adapters: LoraPaths,
        observer: Observer = UNOBSERVED,
    ) -> EngineOutput:
        def report(row: UncompiledRow) -> None:
            self._loop.call_soon_threadsafe(observer.on_step, row)
            if row.all_sent:
                self._loop.call_soon_threadsafe(observer.on_stage, "decoding")

        observer.on_stage("denoising")
        row = UncompiledRow(steps_of(fields, self.pipeline.spec), report)
        return await self.in_thread(partial(self._called, fields, images, adapters, row), row)

    def _pipeline_of(self, fields: Fields) -> Any:
        task: Task = "inpainting" if "mask_image" in fields else "image-to-image"
        default = self.pipeline.default
        return self.pipeline.by_task.get(task, default) if "image" in fields else default

    def _called(
        self, fields: Fields, images: Mapping[str, bytes], adapters: LoraPaths, row: UncompiledRow
    ) -> EngineOutput:
        """Call the diffusers pipeline in its thread."""
        pipeline = self._pipeline_of({**fields, **images})
        row.times[:] = [time.perf_counter()]
        kwargs = arguments(pipeline, fields, images, self.pipeline.spec.fields)
        try:
            with torch_errors(), self._reporting(row, pipeline, fields, adapters):
                self.adapters.switch(adapters)
                output = pipeline(**kwargs)
        except Canceled:
            raise UNSUPPORTED from None
        except ValueError as error:
            if row.done:
                raise
            rejected = JobError(code="invalid_request", message=str(error))
            raise GenerationFailed(rejected) from error
        finally:
            pipeline.maybe_free_model_hooks()
        pixels = pixels_of(output)
        row.times.append(time.perf_counter())
        self.costs.record(fields, row.times)
        seconds = row.times[-1] - row.times[0]
        return EngineOutput(pixels, fields["seed"], row.done, seconds, seconds)

    @contextmanager
    def _reporting(
        self, row: UncompiledRow, pipeline: Any, fields: Fields, adapters: LoraPaths
    ) -> Iterator[None]:
        """Report the steps of the pipeline's scheduler as those of a row."""
        size = fields["width"], fields["height"]

        def on_step(left: Callable[[], int], latents: Any, estimate: Any) -> None:
            if not row.done:
                row.to_do = left() or row.to_do
            is_finite = bool(torch.isfinite(latents).all())  # waits for the device
            row.advance(is_finite, partial(self.pipeline.preview, pipeline, size, estimate))
            if row.done < row.to_do:
                self.adapters.scale(adapters, row.done, row.to_do)

        self._row = row
        if self._hook:
            self._hook.on_step = on_step
        try:
            yield
        finally:
            if self._hook:
                self._hook.on_step = None
            self._row = None
            row.end()

    async def offload_weights(self) -> None:
        """Move the weights to host memory, once the image in progress has ended."""
        await self.in_thread(partial(self._move, "cpu"))

    async def reload_weights(self, keep_copies: bool = True) -> float:
        """Move the weights back to the device; return the seconds."""
        return await self.in_thread(partial(self._move, self.pipeline.device))

    def _move(self, device: torch.device | str) -> float:
        began = time.perf_counter()
        with torch_errors():
            if not self.pipeline.offloads:
                self.pipeline.default.to(device)
            torch.cuda.empty_cache()
        return time.perf_counter() - began


@contextmanager
def torch_errors() -> Iterator[None]:
    """Convert torch's exceptions to the engine's errors.

    Raises: MemoryError: the device's memory is exhausted; EngineFailed: its driver has failed.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            torch.cuda.empty_cache()
            raise MemoryError(str(error)) from error
        if isinstance(error, torch.AcceleratorError):
            raise EngineFailed(f"the device failed: {error}") from error
        raise
