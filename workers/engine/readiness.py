"""Readiness of an engine: warm-up, trial runs, and measured differences between batch layouts."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from models.interface.finite import CheckedOutput
from models.interface.pipeline import Fields, PreparedRow, PyTree, split_sound
from workers.engine.batching import Batch
from workers.engine.errors import generation_errors
from workers.engine.generation import Machinery, denoise
from workers.engine.passes import ImagePass, prepared_passes, warm_up_passes
from workers.engine.row import Row, RowProgress
from workers.programs import warmup
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.cache import ProgramCache
from workers.programs.compiler import Compiler
from workers.programs.device_weights import Weights
from workers.programs.launcher import Launcher
from workers.programs.step_latency import BatchLayout


class MeasurementCanceled(Exception):
    """Raised if the comparison of batch layouts is canceled."""


def levels(
    programs: BucketPrograms,
    prepared: PreparedRow,
    state: PyTree,
    weights: Weights,
    launcher: Launcher,
    given_up: threading.Event,
) -> int:
    """Return an image's largest subpixel difference, out of 255, between batch layouts.

    The reference is the image generated alone. No other steps may run meanwhile.

    Args:
        state: the row after encoding.
        given_up: once set, no further step is begun.

    Raises: MeasurementCanceled.
    """
    batch_layouts = sorted(
        {
            batch_layout
            for step_kind in programs.step_kinds.values()
            for batch_layout in step_kind.batch_layouts
        }
    )

    def pixels(batch_layout: BatchLayout) -> np.ndarray:
        row = stepped(programs, prepared, state, batch_layout, weights, launcher, given_up)
        output: CheckedOutput = launcher.fetch(programs.decode.result()(weights.common, row))
        return np.asarray(split_sound(output.decoded)[0], int)

    alone = pixels(batch_layouts[0])
    return max(
        (int(np.abs(pixels(batch_layout) - alone).max()) for batch_layout in batch_layouts[1:]),
        default=0,
    )


def stepped(
    programs: BucketPrograms,
    prepared: PreparedRow,
    state: PyTree,
    batch_layout: BatchLayout,
    weights: Weights,
    launcher: Launcher,
    given_up: threading.Event,
) -> PyTree:
    """Denoise a row to its last step, padding each batch with copies of it.

    Other rows of a batch do not change a row's bits within one program.

    Raises: MeasurementCanceled.
    """
    row = Row(programs, prepared.steps, state, lambda row: None, lambda row, failure: None)
    while not row.all_sent:
        if given_up.is_set():
            raise MeasurementCanceled("other work is waiting")
        step_kind = row.step_kind
        batch = Batch(
            step_kind,
            (row,),
            batch_layout if batch_layout in step_kind.batch_layouts else step_kind.smallest,
        )
        (after, *_), digests = batch.run(weights.load_expert(step_kind.expert))
        launcher.fetch(digests)
        row.send(after, 0)
    return row.state


class Readiness:
    """Preparation of an engine for the requests it will serve.

    Args:
        batch_layouts: layouts that steps are compiled for.
    """

    def __init__(
        self,
        machinery: Machinery,
        compiler: Compiler,
        cache: ProgramCache,
        batch_layouts: Sequence[BatchLayout],
    ) -> None:
        self._parts = machinery
        self._pipeline = machinery.pipeline
        self._programs = machinery.programs
        self._compiler = compiler
        self._cache = cache
        self._batch_layouts = batch_layouts
        self._run = machinery.stages.run

    async def warm_up(self, requests: Sequence[Fields]) -> None:
        """Compile all programs that each request needs alone; larger batches compile afterwards.

        Raises: the error of a required program.
        """
        await self._run("keep", self._parts.adapters.warm_up)
        await self._run("upscale", self._parts.upscalers.warm_up)
        passes = [image_pass for fields in requests for image_pass in await self._passes(fields)]
        warm_up = self._programs.warm_up
        await asyncio.gather(*(warm_up(each.fields, each.prepared) for each in passes))
        for image_pass in passes:
            self._programs.begin_larger(image_pass.prepared)

    async def larger_ready(self, requests: Sequence[Fields]) -> None:
        """Wait until the larger batches of warm-up requests have compiled or failed to compile."""
        for fields in requests:
            for image_pass in await self._passes(fields):
                await self._programs.larger_ready(image_pass.prepared)

    async def _passes(self, fields: Fields) -> list[ImagePass]:
        return await self._run("prepare", warm_up_passes, self._pipeline, fields)

    async def try_out(
        self, fields: Fields, steps: int, others: asyncio.Barrier | None = None
    ) -> BucketPrograms:
        """Run a warm-up request's first steps of each step kind, then decode.

        The image is discarded. The returned programs have recorded the latency of each stage.

        Args:
            others: barrier at which concurrent trials wait, so that their steps begin together.

        Raises: GenerationFailed, EngineFailed: as `Engine.generate`.
        """
        parts = self._parts
        with generation_errors("trying it out"):
            prepared = await self._run("prepare", warmup.prepare, self._pipeline, fields)
            programs = await self._programs.compiled(fields, prepared)
            async with parts.adapters.reserved(prepared, "", lambda: None) as placed:
                few = replace(placed, steps=warmup.first_steps(placed.steps, steps))
                state = await self._run("encode", parts.stages.encode, programs, few)
                start, image_pass = RowProgress(state, 0, 0.0), ImagePass(fields, {}, few)
                if others is not None:
                    await others.wait()
                row = await denoise(parts, programs, image_pass, start, lambda row: None)
                await parts.stages.decode(row)
        return programs

    async def levels(self, fields: Fields) -> int:
        """Measure the largest difference of an image between batch layouts, in levels of 255.

        `fields` is a warm-up request whose larger batches are compiled. A result stored by an
        earlier start is reused. No other image may run meanwhile. If the task is canceled, it ends
        after the step in flight.

        Raises: any error of generating the image.
        """
        prepared = await self._run("prepare", warmup.prepare, self._pipeline, fields)
        programs, given_up = await self._programs.compiled(fields, prepared), threading.Event()

        def find() -> int:
            state = self._parts.stages.encode(programs, prepared)
            weights, launcher = self._compiler.weights, self._parts.launcher
            return levels(programs, prepared, state, weights, launcher, given_up)

        name = (
            "levels",
            self._pipeline.spec.fingerprint,
            json.dumps(fields, sort_keys=True, default=str),
            *map(str, self._batch_layouts),
        )
        fact, inputs = self._compiler.store.fact, dict(prepared.inputs)
        try:
            return await self._run("preview", fact, name, inputs, find)
        except asyncio.CancelledError:
            given_up.set()
            await self._run("preview", lambda: None)  # waits for the step in flight
            raise

    async def is_compiled(self, fields: Fields, images: Mapping[str, bytes]) -> bool:
        """Return whether a request's programs are all compiled, without compiling any.

        Raises: GenerationFailed: the request cannot be served.
        """
        with generation_errors("preparing the request"):
            passes = await self._run("prepare", prepared_passes, self._pipeline, fields, images)
        return all(
            self._cache.has(image_pass.prepared) for image_pass in passes if image_pass is not None
        )

    async def find_stored(self, buckets: Iterable[str]) -> None:
        """Check which of the queue's buckets have stored executables."""
        await self._programs.find_stored(buckets)
