"""Engine: generates images and videos from requests, many at a time, on one mesh slice.

`generation` has the path of one image, `stages` the threads around the step loop, `readiness` the
warm-up. This module connects them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from models.interface.pipeline import Fields, Pipeline
from models.parallel.axis_rules import Layout
from models.upscale.load import LoadedUpscaler
from workers.engine.adapters import Adapters, LoraFiles, no_files
from workers.engine.generation import Draft, EngineOutput, Generation, ImageRequest, Machinery
from workers.engine.latency_stats import LatencyStats
from workers.engine.observer import UNOBSERVED, Observer
from workers.engine.place import Place, place_of
from workers.engine.prompt_cache import PromptCache
from workers.engine.readiness import Readiness
from workers.engine.request_programs import RequestPrograms
from workers.engine.row import Row
from workers.engine.row_snapshots import RowSnapshots
from workers.engine.snapshot import RowSnapshot
from workers.engine.stages import Stages
from workers.engine.step_loop import StepLoop
from workers.engine.step_metrics import StepMetrics
from workers.engine.upscaling import Upscalers
from workers.programs.aot_cache import Executables
from workers.programs.batch_sizes import BatchSizes, exact
from workers.programs.cache import ProgramCache
from workers.programs.compiler import Compiler
from workers.programs.launcher import Launcher, OneHost

STUCK_S = 1.0
"""Seconds that a failed engine waits for its last step, which may wait for a lost device."""


class Engine:
    """Inference engine of one pipeline on one mesh slice. Use it from one event loop.

    Args:
        layout: how the slice partitions the work.
        slots: maximum number of images denoised together.
        batching: batch sizes that steps are compiled for; None: one row, exact batching.
        launcher: launches programs on all processes of the slice; None: this process only.
        executables: cache of compiled programs.
        lora_files: resolves adapter files; None: no adapters.
        upscalers: upscalers of finished images, by name; None: no upscalers.
        prompt_cache_bytes: size of the cache of encoded prompts, on one host; 0: no cache.
    """

    stages_type: ClassVar[type[Stages]] = Stages

    def __init__(
        self,
        pipeline: Pipeline,
        layout: Layout,
        slots: int,
        batching: BatchSizes | None = None,
        launcher: Launcher | None = None,
        executables: Executables | None = None,
        lora_files: LoraFiles | None = None,
        upscalers: Mapping[str, LoadedUpscaler] | None = None,
        prompt_cache_bytes: int = 0,
    ) -> None:
        launcher = launcher or OneHost()
        compiler = Compiler(pipeline, layout, executables)
        self.pipeline, self.layout, self.slots = pipeline, layout, slots
        self.batching = batching or exact()
        self.costs = LatencyStats(pipeline.spec)
        self.weights = compiler.weights
        is_on_one_host = isinstance(launcher, OneHost)
        self._prompts = PromptCache(pipeline.spec.name, prompt_cache_bytes * is_on_one_host)
        self._stages = self.stages_type(launcher, compiler.weights.common, self._prompts)
        self.failure = self._stages.failure
        """Failure of the engine; completes only when no program can be launched any more."""
        self.fail = self._stages.fail
        batch_layouts = compiler.batch_layouts(self.batching.sizes, self.batching.elastic)
        self.programs = ProgramCache(compiler, launcher, batch_layouts)
        self.snapshots = RowSnapshots(launcher, self.batching.is_exact)
        self.adapters = Adapters(pipeline, compiler.weights, launcher, lora_files or no_files)
        self.upscalers = Upscalers(pipeline.spec, upscalers or {})
        meter = StepMetrics(pipeline.spec.name, compiler.layout_of)
        self.step_loop = StepLoop(meter, compiler.weights, slots, launcher.fetch, self.fail)
        programs = RequestPrograms(self.programs, compiler, self.costs, self._stages)
        self._machinery = Machinery(
            *(pipeline, launcher, self._stages, programs, self.adapters, self.upscalers),
            *(self.snapshots, self.step_loop),
        )
        self.readiness = Readiness(self._machinery, compiler, self.programs, batch_layouts)
        self.step_loop.start()
        launcher.on_loss(self.fail)

    @cached_property
    def place(self) -> Place:
        """Devices of the engine, and what its outputs depend on besides requests."""
        return place_of(self.pipeline.spec, self.layout)

    async def generate(
        self,
        fields: Fields,
        images: Mapping[str, bytes],
        observer: Observer = UNOBSERVED,
        begin: RowSnapshot | None = None,
        tenant: str = "",
    ) -> EngineOutput:
        """Generate one image or video. To cancel it, cancel the task.

        For the arguments see `ImageRequest`. Raises: as `Generation.run`.
        """
        request = ImageRequest(fields, images, tenant, begin)
        return await Generation(self._machinery, request, observer).run()

    async def draft(
        self, request: ImageRequest, stop_at: int, observer: Observer = UNOBSERVED
    ) -> Draft:
        """Generate an image's first `stop_at` steps only. Raises: as `generate`."""
        return await Generation(self._machinery, request, observer).draft(stop_at)

    async def position(
        self, request: ImageRequest, drafted: Fields, done: int, observer: Observer = UNOBSERVED
    ) -> int:
        """Return the step at which an image continues a draft. Raises: as `Generation.position`."""
        return await Generation(self._machinery, request, observer).position(drafted, done)

    async def preview(self, row: Row, tenant: str = "") -> np.ndarray:
        """Return a preview of an unfinished row: uint8 [h, w, 3]; for a video [frames, h, w, 3]."""
        return await self._stages.preview(row, tenant)

    async def take_snapshot(self, row: Row, tenant: str = "") -> RowSnapshot:
        """Copy a row's state for another engine, while its steps continue. Raises: EngineFailed."""
        return await self._stages.run("keep", self.snapshots.take, row, tenant=tenant)

    async def pause(self, row: Row) -> None:
        """Pause a row, which keeps its slot, until `step_loop.resume`.

        Returns once no step of the row is in flight. Never returns if the row has ended meanwhile.
        """
        still = asyncio.Event()
        self.step_loop.pause(row, partial(self._stages.loop.call_soon_threadsafe, still.set))
        await still.wait()

    async def offload_weights(self) -> None:
        """Move the model's weights off the devices. No request may be sent meanwhile.

        Returns once the work of canceled images has ended and the weights are freed.
        """
        await self._machinery.idle()
        self._prompts.clear()
        await self._stages.run("keep", self.weights.offload)

    async def reload_weights(self, keep_copies: bool = True) -> float:
        """Load the weights again; return the seconds. Args: keep_copies: also in host memory."""
        return await self._stages.run("keep", self.weights.reload, keep_copies)

    def close(self) -> None:
        """Stop after the step in flight. Unfinished images are dropped."""
        self.step_loop.close(STUCK_S if self.failure.done() else None)
        self.programs.close()
        self.adapters.close()
        self._stages.close()
