"""Engine: images and videos from requests, many at a time, on one mesh slice.

`generate` is the whole path of one image. Each stage has its own thread, so that none of them
holds up the step loop: the device waits for nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from models.interface.finite import Shown
from models.interface.image_start import latents_file
from models.interface.pipeline import Fields, Pipeline, Prepared, PyTree, parted
from models.parallel.axis_rules import Layout
from models.spec.hires import FIELD as HIRES
from models.spec.hires import LANCZOS, LATENT
from models.spec.upscalers import FIELD as UPSCALE
from models.upscale.load import LoadedUpscaler
from service.tracing import spans
from service.tracing.span import Attributes
from workers.engine.adapters import Adapters, LoraFiles, no_files
from workers.engine.batch_difference import levels
from workers.engine.errors import STAGES, GenerationFailed, explained, not_finite
from workers.engine.image_programs import ImagePrograms, ready
from workers.engine.latency_stats import LatencyStats
from workers.engine.passes import (
    ImagePass,
    OnStage,
    Told,
    prepared_passes,
    warm_up_passes,
    with_warnings_of,
)
from workers.engine.row import Checked, Row
from workers.engine.row_snapshots import RowSnapshots
from workers.engine.snapshot import RowSnapshot, UnfitSnapshot
from workers.engine.stage_threads import StageThreads
from workers.engine.stage_timing import Timed, marking, stage
from workers.engine.step_loop import StepLoop
from workers.engine.step_metrics import StepMetrics
from workers.engine.upscaling import Upscalers
from workers.programs import warmup
from workers.programs.aot_cache import Executables
from workers.programs.batch_sizes import BatchSizes, exact
from workers.programs.bucket_programs import BucketPrograms, Compiling
from workers.programs.cache import ProgramCache
from workers.programs.compilation import Compilation
from workers.programs.compiler import Compiler, signature
from workers.programs.launcher import Launcher, OneHost
from workers.programs.second_pass import image_file
from workers.programs.step_latency import Recent

log = logging.getLogger(__name__)
T = TypeVar("T")

STUCK_S = 1.0
"""Time that a dead engine waits for its last step, which may wait for a device that is gone."""
LATENTS, DENOISED = "['latents']", "['denoised']"
"""Names of a row's latents, and of its estimate of the clean ones, among its leaves."""


@dataclass(frozen=True)
class EngineOutput:
    """Finished image or video.

    `device_seconds` is its share of the steps with it, and what its encoding and decoding take;
    `own_seconds` leaves out what earlier claims had taken.
    """

    pixels: np.ndarray
    """uint8 [height, width, 3]; of a video [frames, height, width, 3]."""
    seed: int
    steps: int
    device_seconds: float
    own_seconds: float
    sound: np.ndarray | None = None
    """float32 [channels, samples] of a video with sound."""


@dataclass(frozen=True)
class Draft:
    """Image that was stopped at a step, to be continued from there."""

    row: Row
    """Row after its last step, for a snapshot."""
    preview: EngineOutput
    """Small image of what it may become."""


class Engine:
    """Engine of one pipeline on one mesh slice, to be used from one event loop.

    Args:
        layout: how the slice splits its work.
        slots: images that are denoised together at the most.
        batching: the batch sizes that steps are compiled for; None: one row, exactly.
        launcher: where a launch goes besides this process.
        executables: programs that need not be compiled.
        lora_files: where adapters' files are; None: there are none.
        upscalers: upscalers of finished images, by name; None: there are none.
    """

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
    ) -> None:
        self.pipeline = pipeline
        self.layout = layout
        self.slots = slots
        self.batching = batching or exact()
        self.costs = LatencyStats(pipeline.spec)
        self._stages = StageThreads()
        self.died = self._stages.died
        """Death of the engine; has a result only when nothing can be launched any more."""
        self._launcher = launcher or OneHost()
        compiler = Compiler(pipeline, layout, executables)
        self._compiler = compiler
        self.weights = compiler.weights
        self._weights = compiler.weights.common
        self._batch_layouts = compiler.batch_layouts(self.batching.sizes, self.batching.elastic)
        self.programs = ProgramCache(compiler, self._launcher, self._batch_layouts)
        self._programs = ImagePrograms(self.programs, compiler, self.costs, self._stages)
        self._snapshots = RowSnapshots(self._launcher, self.batching.is_exact)
        self.adapters = Adapters(pipeline, compiler.weights, self._launcher, lora_files or no_files)
        self.upscalers = Upscalers(pipeline.spec, upscalers or {})
        meter = StepMetrics(pipeline.spec.name, compiler.layout_of)
        self.step_loop = StepLoop(meter, compiler.weights, slots, self._launcher.fetch, self.die)
        self.step_loop.start()
        self._launcher.on_loss(self.die)

    async def warm_up(self, requests: Sequence[Fields]) -> None:
        """Compile all that each of these requests runs alone; larger batches follow.

        Raises: the error of a program they need.
        """
        await self._run("keep", self.adapters.warm_up)
        await self._run("upscale", self.upscalers.warm_up)
        passes = [
            one
            for fields in requests
            for one in await self._run("prepare", warm_up_passes, self.pipeline, fields)
        ]
        for one in passes:
            await self._programs.warm_up(one.fields, one.prepared)
        for one in passes:
            self._programs.begin_larger(one.prepared)

    async def larger_ready(self, requests: Sequence[Fields]) -> None:
        """Wait until the larger batches of warm-up requests are compiled, or do not compile."""
        for fields in requests:
            for one in await self._run("prepare", warm_up_passes, self.pipeline, fields):
                await self._programs.larger_ready(one.prepared)

    async def try_out(
        self, fields: Fields, steps: int, others: asyncio.Barrier | None = None
    ) -> BucketPrograms:
        """Run a warm-up request's first steps of each phase, and decode.

        Nobody sees the image, but its programs, which are returned, know then how long all that
        takes.

        Args:
            others: trials whose steps begin when those of this one do.

        Raises: GenerationFailed, EngineDied: as `generate`.
        """
        with explained("trying it out"):
            prepared = await self._run("prepare", warmup.prepare, self.pipeline, fields)
            programs = await self._programs.compiled(fields, prepared)
            async with self.adapters.held(prepared, "", lambda: None) as placed:
                few = replace(placed, steps=warmup.first_steps(placed.steps, steps))
                state = await self._run("encode", self._encode, programs, few)
                start, one = Checked(state, 0, 0.0), ImagePass(fields, {}, few)
                if others is not None:
                    await others.wait()
                await self._decode(await self._denoise(programs, one, start, lambda row: None))
        return programs

    async def levels(self, fields: Fields) -> int:
        """Measure by how much of 255 an image differs between batch sizes, at the most.

        Of a warm-up request whose larger batches are compiled; or recall it from an earlier start.
        Nothing else may run. Canceled, it ends with the step in flight.

        Raises: whatever keeps it from being drawn.
        """
        prepared = await self._run("prepare", warmup.prepare, self.pipeline, fields)
        programs, given_up = await self._programs.compiled(fields, prepared), threading.Event()

        def find() -> int:
            weights, state = self._compiler.weights, self._encode(programs, prepared)
            return levels(programs, prepared, state, weights, self._launcher, given_up)

        name = (
            "levels",
            self.pipeline.spec.fingerprint,
            json.dumps(fields, sort_keys=True, default=str),
            *map(str, self._batch_layouts),
        )
        fact, inputs = self._compiler.store.fact, dict(prepared.inputs)
        try:
            return await self._run("preview", fact, name, inputs, find)
        except asyncio.CancelledError:
            given_up.set()
            await self._run("preview", lambda: None)  # behind the step in flight
            raise

    async def is_compiled(self, fields: Fields, images: Mapping[str, bytes]) -> bool:
        """Return whether a request's programs are all compiled, and begin to compile none.

        Raises: GenerationFailed: it cannot be served.
        """
        with explained("preparing the request"):
            passes = await self._run("prepare", prepared_passes, self.pipeline, fields, images)
        return all(self.programs.has(one.prepared) for one in passes if one is not None)

    async def generate(
        self,
        fields: Fields,
        images: Mapping[str, bytes],
        on_step: Callable[[Row], None] = lambda row: None,
        begin: RowSnapshot | None = None,
        on_prepared: Callable[[Prepared], None] = lambda prepared: None,
        on_stage: OnStage = lambda stage, expected_s: None,
        on_compile: Callable[[Compilation], None] = lambda compilation: None,
        tenant: str = "",
        timed: Timed = stage,
    ) -> EngineOutput:
        """Generate one image from one request. To cancel it, cancel the task.

        Args:
            tenant: whose adapters it may name, beside the operator's.
            on_step: told of each step that is done, in the event loop.
            on_stage: told when it begins to be compiled, which most are not, denoised and decoded.
            begin: how far it was before; None, or what does not fit it: it begins anew.
            on_prepared: told once what the host made of the request, in the event loop.
            on_compile: told there what it has to pay for, if it is the first to need programs.
            timed: around its stages; as a job's, unless it is none.

        Raises:
            GenerationFailed: this image cannot be made; its neighbours are unharmed.
            EngineDied: no image can be made any more by this process.
            StoreError: an adapter's file cannot be fetched now.
        """
        told = Told(on_step, on_stage, on_compile, tenant, timed)
        first, second = await self._prepared(fields, images, on_prepared)
        row = await self._drawn(first, second, fields.get(HIRES), begin, told)
        pixels, sound = parted(await self._decoded(row, told))
        drawn = await self._upscaled(fields.get(UPSCALE), pixels, told)
        around_s = row.programs.around_s
        around_s += self.upscalers.seconds(fields.get(UPSCALE), pixels.shape)
        return EngineOutput(
            drawn,
            first.prepared.seed,
            row.image_done,
            row.device_seconds + around_s,
            row.own_seconds + around_s,
            sound,
        )

    async def draft(
        self,
        fields: Fields,
        images: Mapping[str, bytes],
        stop_at: int,
        told: Told,
        begin: RowSnapshot | None = None,
        on_prepared: Callable[[Prepared], None] = lambda prepared: None,
    ) -> Draft:
        """Draw an image's first steps, as `generate` draws them; arguments and errors are its.

        Args:
            stop_at: number of steps, fewer than the first pass has.
        """
        first, _ = await self._prepared(fields, images, on_prepared)
        alone = replace(first, stop_at=stop_at, after=0, after_work=0.0)
        row = await self._pass(alone, begin, told)
        told.on_stage("decoding", None)
        with explained("decoding the preview"):
            pixels = await self.preview(row)
        around_s = row.programs.encode_times.median or 0.0
        seed, done = first.prepared.seed, row.image_done
        shown = EngineOutput(
            pixels, seed, done, row.device_seconds + around_s, row.own_seconds + around_s
        )
        return Draft(row, shown)

    async def _prepared(
        self, fields: Fields, images: Mapping[str, bytes], on_prepared: Callable[[Prepared], None]
    ) -> tuple[ImagePass, ImagePass | None]:
        with explained("preparing the request"), spans.span("prepare"):
            first, second = await self._run(
                "prepare", prepared_passes, self.pipeline, fields, images
            )
        on_prepared(with_warnings_of(first, second))
        return first, second

    async def _drawn(
        self,
        first: ImagePass,
        second: ImagePass | None,
        hires: Mapping[str, Any] | None,
        begin: RowSnapshot | None,
        told: Told,
    ) -> Row:
        """Draw an image to the end of its last pass, or from a snapshot on, in either pass."""
        if second is None:
            return await self._pass(first, begin, told)
        if begin is not None and begin.done > second.before:
            try:
                return await self._pass(second, begin, told)
            except UnfitSnapshot as error:
                log.warning("an image begins anew, its snapshot does not fit: %s", error)
                begin = None
        async with self._ahead(second, told) as compiling:
            row = await self._pass(first, begin, told)
            image, around_s = await self._enlarged(row, hires, told)
            with explained("preparing the second pass"):
                from_image = partial(second.from_image, self.pipeline, image, row, around_s)
                second = await self._run("prepare", from_image)
            with explained("compiling"):
                raise_failed(compiling)
            return await self._pass(second, None, told)

    @asynccontextmanager
    async def _ahead(self, later: ImagePass, told: Told) -> AsyncIterator[asyncio.Future[Any]]:
        """Yield what compiles a later pass's programs, behind those of the pass that begins."""
        fields, prepared = later.fields, later.prepared
        compiling = asyncio.ensure_future(
            self._programs.compiled(fields, prepared, on_compile=told.on_compile)
        )
        try:
            yield compiling
        finally:
            compiling.cancel()
            await asyncio.gather(compiling, return_exceptions=True)  # the pass itself tells of it

    async def _pass(self, one: ImagePass, begin: RowSnapshot | None, told: Told) -> Row:
        """Denoise one pass.

        Raises: UnfitSnapshot: of a second pass, which cannot begin anew.
        """
        with explained("compiling"), spans.span("compile"):
            programs = await self._programs.compiled(
                one.fields, one.prepared, told.on_stage, told.on_compile
            )
        on_wait = partial(told.on_stage, "loading_adapters", None)
        with explained("loading adapters"):
            async with self.adapters.held(one.prepared, told.tenant, on_wait) as placed:
                told.on_stage("denoising", None)
                return await self._draw(programs, replace(one, prepared=placed), begin, told)

    async def _enlarged(
        self, row: Row, hires: Mapping[str, Any] | None, told: Told
    ) -> tuple[bytes, float]:
        """Return what the second pass begins with, and the device-seconds that it took.

        The second pass resizes it to its own size: latents by the network of that name, where the
        model has one, as a part of its encoding. Smaller first steps end in an estimate of them.

        Args:
            hires: None: such steps.
        """
        encode_s = row.programs.encode_times.median or 0.0
        if hires is None or hires["upscaler"] in (LATENT, *self.pipeline.spec.enlargers):
            name = LATENTS if hires else DENOISED
            with explained("enlarging the latents"):
                return await self._run("keep", self._latents_file, row, name), encode_s
        pixels, _ = parted(await self._decoded(row, told))
        around_s = row.programs.around_s
        if hires["upscaler"] != LANCZOS:
            asked = {
                "name": hires["upscaler"],
                "scale": self.upscalers.loaded(hires["upscaler"]).spec.scale,
            }
            around_s += self.upscalers.seconds(asked, pixels.shape)
            pixels = await self._upscaled(asked, pixels, told)
        return await self._run("prepare", image_file, pixels), around_s

    def _latents_file(self, row: Row, name: str) -> bytes:
        leaves = self._launcher.leaves(row.known)
        latents = jnp.asarray(self._launcher.fetch(leaves[name]))
        shapes = row.programs.row.result()
        return latents_file(np.asarray(self.pipeline.spatial({**shapes, "latents": latents})))

    async def _decoded(self, row: Row, told: Told) -> PyTree:
        told.on_stage("decoding", None)
        with explained("decoding the image"), told.timed(self.pipeline.spec.name, "decode"):
            return await self._decode(row)

    async def _upscaled(
        self, asked: Mapping[str, Any] | None, pixels: np.ndarray, told: Told
    ) -> np.ndarray:
        """Draw an image larger, where that is asked for; between tiles it may be canceled."""
        if not asked:
            return pixels
        told.on_stage("upscaling", None)
        with explained("upscaling the image"), told.timed(self.pipeline.spec.name, "upscale"):
            upscaling = await self._run("upscale", self.upscalers.begin, asked, pixels)
            for work in upscaling.works():
                await self._run("upscale", work)
            return await self._run("upscale", upscaling.image)

    async def _draw(
        self,
        programs: BucketPrograms,
        one: ImagePass,
        begin: RowSnapshot | None,
        told: Told,
    ) -> Row:
        """Encode a request and denoise it to its end, or from a snapshot on."""
        model, prepared = self.pipeline.spec.name, one.prepared
        with explained("encoding the prompt"):
            with told.timed(model, "encode"):
                state = await self._run("encode", self._encode, programs, prepared)
            start = Checked(state, 0, one.device_seconds)
            if begin is not None:
                take_up = self._snapshots.take_up
                start = await self._run("encode", take_up, programs, one, start, begin)
                one = replace(one, earlier_s=start.device_seconds)
        with explained("denoising"), told.timed(model, "denoise") as span:
            row = await self._denoise(programs, one, start, marking(span, told.on_step))
            span.set(span_attributes(row, start))
        return row

    async def preview(self, row: Row) -> np.ndarray:
        """A small image of an unfinished row: uint8 [h, w, 3]; of a video [frames, h, w, 3]."""
        return await self._show("preview", row.programs.preview, row)

    async def take_snapshot(self, row: Row) -> RowSnapshot:
        """Copy what another engine needs to go on with this row, beside its steps.

        Raises: EngineDied.
        """
        return await self._run("keep", self._snapshots.take, row)

    def snapshot_bytes(self, row: Row) -> int | None:
        """Bytes that `take_snapshot` copies; None: a part lies on devices of other hosts."""
        return self._snapshots.bytes(row)

    async def hold(self, row: Row) -> None:
        """Stop stepping a row, which keeps its slot.

        Returns when no step of it is under way: never where it has ended meanwhile.
        """
        still = asyncio.Event()
        self.step_loop.hold(row, partial(self._stages.loop.call_soon_threadsafe, still.set))
        await still.wait()

    def go_on(self, row: Row) -> None:
        """Step a row again that was held."""
        self.step_loop.go_on(row)

    async def leave_devices(self) -> None:
        """Free the devices of this model's weights. Nobody may ask it for anything meanwhile.

        Returns when the work of images that were canceled has ended, and the weights have left.
        """
        empty: asyncio.Future[None] = self._stages.loop.create_future()
        self.step_loop.when_empty(
            partial(self._stages.loop.call_soon_threadsafe, empty.set_result, None)
        )
        await self._stages.unless_dead(empty)
        await self.adapters.settled()
        await self._stages.settled()
        await self._run("keep", self.weights.leave)

    async def return_to_devices(self, keep_copies: bool = True) -> float:
        """Bring the weights back; return the seconds. Args: keep_copies: in host memory."""
        return await self._run("keep", self.weights.come_back, keep_copies)

    def close(self) -> None:
        """Stop after the step in flight. Images that are not done never will be."""
        self.step_loop.close(STUCK_S if self.died.done() else None)
        self.programs.close()
        self.adapters.close()
        self._stages.close()

    async def look_for(self, buckets: Iterable[str]) -> None:
        """Find out which of the queue's buckets need not be compiled."""
        await self._programs.look_for(buckets)

    def _encode(self, programs: BucketPrograms, prepared: Prepared) -> PyTree:
        program = programs.encoders[signature(prepared.inputs)].result()
        with programs.encode_times.timing():
            return self._launcher.wait(program(self._weights, dict(prepared.inputs)))

    async def _decode(self, row: Row) -> PyTree:
        """Raises: GenerationFailed: it is not finite."""
        return await self._show("decode", row.programs.decode, row, row.programs.decode_times)

    async def _show(
        self, stage: str, program: Compiling, row: Row, times: Recent | None = None
    ) -> PyTree:
        """Pixels of a row as it is now, on the host; of a finished one with its sound.

        Raises: GenerationFailed: they are not finite.
        """
        await ready(program)

        def pixels(state: PyTree) -> Shown:
            with times.timing() if times else nullcontext():
                shown: Shown = self._launcher.fetch(program.result()(self._weights, state))
                return shown

        shown = await self._run(stage, pixels, row.known)
        if shown.broken:
            raise not_finite(STAGES[stage, shown.broken])
        return shown.decoded

    async def _denoise(
        self,
        programs: BucketPrograms,
        one: ImagePass,
        start: Checked,
        on_step: Callable[[Row], None],
    ) -> Row:
        """Denoise through the step loop; a canceled task takes its row out of it."""
        ended: asyncio.Future[Row] = self._stages.loop.create_future()

        def hand_over(row: Row, failure: GenerationFailed | None) -> None:
            self._stages.loop.call_soon_threadsafe(resolve, ended, row, failure)

        def report(row: Row) -> None:
            self._stages.loop.call_soon_threadsafe(on_step, row)

        row = Row(
            programs,
            one.prepared.steps,
            start.state,
            on_step=report,
            on_end=hand_over,
            done=start.done,
            stop_at=one.stop_at,
            before=one.before,
            after=one.after,
            after_work=one.after_work,
            device_seconds=start.device_seconds,
            earlier_s=one.earlier_s,
        )
        if row.all_sent:
            return row
        try:
            self.step_loop.submit(row)
            return await self._stages.unless_dead(ended)
        finally:
            row.canceled = True

    def die(self, error: Exception) -> None:
        """Stop launching for good, for this reason. From any thread."""
        self._stages.die(error)

    async def _run(self, stage: str, function: Callable[..., T], *args: Any) -> T:
        """Run a function in the stage's thread."""
        return await self._stages.run(stage, function, *args)


def resolve(ended: asyncio.Future[Row], row: Row, failure: GenerationFailed | None) -> None:
    """Set the future to the row, or to its failure."""
    if ended.done():  # canceled in the meantime
        return
    if failure is None:
        ended.set_result(row)
    else:
        ended.set_exception(failure)


def raise_failed(compiling: asyncio.Future[Any]) -> None:
    """Raise the error that compiling ended with; none of what goes on or was dropped."""
    if compiling.done() and not compiling.cancelled() and (error := compiling.exception()):
        raise error


def span_attributes(row: Row, start: Checked) -> Attributes:
    """Return the span attributes of a finished denoising."""
    return {
        "atelier.steps": row.to_do,
        "atelier.steps.before": start.done,
        "atelier.device_s": row.device_seconds - start.device_seconds,
    }
