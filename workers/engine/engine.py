"""Engine: images and videos from requests, many at a time, on one mesh slice.

`generate` is the whole path of one image. Each stage has its own thread, so that none of them
holds up the step loop: the device waits for nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

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
from workers.engine.errors import EngineDied, GenerationFailed, explained
from workers.engine.latency_stats import LatencyStats
from workers.engine.passes import ImagePass, OnStage, Told, image_file, prepared_passes
from workers.engine.row import Checked, Row
from workers.engine.snapshot import RowSnapshot, UnfitSnapshot, check_fit, needed
from workers.engine.stage_timing import marking, stage
from workers.engine.step_loop import StepLoop
from workers.engine.step_metrics import StepMetrics
from workers.engine.upscaling import Upscalers
from workers.programs import warmup
from workers.programs.aot_cache import Executables
from workers.programs.batch_sizes import BatchSizes, exact
from workers.programs.bucket_programs import BucketPrograms, Compiling, is_ready
from workers.programs.cache import ProgramCache
from workers.programs.compilation import Compilation
from workers.programs.compiler import Compiler, signature
from workers.programs.launcher import Launcher, OneHost
from workers.programs.step_latency import Recent

log = logging.getLogger(__name__)
T = TypeVar("T")

STUCK_S = 1.0
"""Time that a dead engine waits for its last step, which may wait for a device that is gone."""
LATENTS = "['latents']"
"""Name of a row's latents among its leaves."""
LOOK_AGAIN_S = 60.0
"""Pause before a bucket's programs are looked for in files again; a look takes 0.2 ms."""


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
        self._loop = asyncio.get_running_loop()
        self._look_again: dict[str, float] = {}
        """Time from which a bucket may be looked for in files again, by the loop's clock."""
        self.died: asyncio.Future[EngineDied] = self._loop.create_future()
        """Death of the engine; has a result only when nothing can be launched any more."""
        self._launcher = launcher or OneHost()
        compiler = Compiler(pipeline, layout, executables)
        self._compiler = compiler
        self._weights = compiler.weights.common
        self._batch_layouts = compiler.batch_layouts(self.batching.sizes, self.batching.elastic)
        self.programs = ProgramCache(compiler, self._launcher, self._batch_layouts)
        self.adapters = Adapters(pipeline, compiler.weights, self._launcher, lora_files or no_files)
        self.upscalers = Upscalers(pipeline.spec, upscalers or {})
        # One thread a stage: at most one encode and one decode share the device with the steps.
        stages = ("prepare", "encode", "decode", "upscale", "preview", "keep")
        self._threads = {stage: ThreadPoolExecutor(1, stage) for stage in stages}
        meter = StepMetrics(pipeline.spec.name, compiler.layout_of)
        self.step_loop = StepLoop(meter, compiler.weights, slots, self._launcher.fetch, self.die)
        self.step_loop.start()
        self._launcher.on_loss(self.die)

    async def warm_up(self, requests: Sequence[Fields]) -> None:
        """Compile all that these requests run. Raises: the error of a program they need."""
        await self._run("keep", self.adapters.warm_up)
        await self._run("upscale", self.upscalers.warm_up)
        for fields in requests:
            prepared = await self._run("prepare", warmup.prepare, self.pipeline, fields)
            await self.look_for(filter(None, [self.costs.bucket(fields)]))
            programs = self._programs_of(fields, prepared)
            programs.compilation.take()  # nobody is charged for it
            await ready(*programs.necessary())
            self._learn(programs.compilation, fields)
            for program in programs.optional():
                try:
                    await ready(program)
                except Exception as error:
                    log.warning("this batch size does not compile and is not used: %s", error)

    async def try_out(self, fields: Fields, steps: int) -> BucketPrograms:
        """Run a warm-up request's first steps of each phase, and decode.

        Nobody sees the image, but its programs, which are returned, know then how long all that
        takes.

        Raises: GenerationFailed, EngineDied: as `generate`.
        """
        with explained("trying it out"):
            prepared = await self._run("prepare", warmup.prepare, self.pipeline, fields)
            programs = await self._compiled(fields, prepared)
            async with self.adapters.held(prepared, "", lambda: None) as placed:
                few = replace(placed, steps=warmup.first_steps(placed.steps, steps))
                state = await self._run("encode", self._encode, programs, few)
                start, one = Checked(state, 0, 0.0), ImagePass(fields, {}, few)
                await self._decode(await self._denoise(programs, one, start, lambda row: None))
        return programs

    async def levels(self, fields: Fields) -> int:
        """Measure by how much of 255 an image differs between batch sizes, at the most.

        Of a warm-up request; or recall it from an earlier start. Nothing else may run.

        Raises: whatever keeps it from being drawn.
        """
        prepared = await self._run("prepare", warmup.prepare, self.pipeline, fields)
        programs = await self._compiled(fields, prepared)
        larger = (asyncio.wrap_future(program) for program in programs.optional())
        await asyncio.gather(*larger, return_exceptions=True)

        def find() -> int:
            weights, state = self._compiler.weights, self._encode(programs, prepared)
            return levels(programs, prepared, state, weights, self._launcher)

        name = (
            "levels",
            json.dumps(fields, sort_keys=True, default=str),
            *map(str, self._batch_layouts),
        )
        fact, inputs = self._compiler.store.fact, dict(prepared.inputs)
        return await self._run("preview", fact, name, inputs, find)

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
    ) -> EngineOutput:
        """Generate one image from one request. To cancel it, cancel the task.

        Args:
            tenant: whose adapters it may name, beside the operator's.
            on_step: told of each step that is done, in the event loop.
            on_stage: told when it begins to be compiled, which most are not, denoised and decoded.
            begin: how far it was before; None, or what does not fit it: it begins anew.
            on_prepared: told once what the host made of the request, in the event loop.
            on_compile: told there what it has to pay for, if it is the first to need programs.

        Raises:
            GenerationFailed: this image cannot be made; its neighbours are unharmed.
            EngineDied: no image can be made any more by this process.
            StoreError: an adapter's file cannot be fetched now.
        """
        told = Told(on_step, on_stage, on_compile, tenant)
        with explained("preparing the request"), spans.span("prepare"):
            first, second = await self._run(
                "prepare", prepared_passes, self.pipeline, fields, images
            )
        on_prepared(first.prepared)
        row = await self._drawn(first, second, fields.get(HIRES), begin, told)
        pixels, sound = parted(await self._decoded(row, told))
        drawn = await self._upscaled(fields.get(UPSCALE), pixels, on_stage)
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

    async def _drawn(
        self,
        first: ImagePass,
        second: ImagePass | None,
        hires: Mapping[str, Any] | None,
        begin: RowSnapshot | None,
        told: Told,
    ) -> Row:
        """Draw an image to the end of its last pass, or from a snapshot on, in either pass."""
        if second is None or hires is None:
            return await self._pass(first, begin, told)
        if begin is not None and begin.done > second.before:
            try:
                return await self._pass(second, begin, told)
            except UnfitSnapshot as error:
                log.warning("an image begins anew, its snapshot does not fit: %s", error)
                begin = None
        row = await self._pass(first, begin, told)
        image, around_s = await self._enlarged(row, hires, told)
        with explained("preparing the second pass"):
            from_image = partial(second.from_image, self.pipeline, image, row, around_s)
            second = await self._run("prepare", from_image)
        return await self._pass(second, None, told)

    async def _pass(self, one: ImagePass, begin: RowSnapshot | None, told: Told) -> Row:
        """Denoise one pass.

        Raises: UnfitSnapshot: of a second pass, which cannot begin anew.
        """
        with explained("compiling"), spans.span("compile"):
            programs = await self._compiled(
                one.fields, one.prepared, told.on_stage, told.on_compile
            )
        on_wait = partial(told.on_stage, "loading_adapters", None)
        with explained("loading adapters"):
            async with self.adapters.held(one.prepared, told.tenant, on_wait) as placed:
                told.on_stage("denoising", None)
                return await self._draw(
                    programs, replace(one, prepared=placed), begin, told.on_step
                )

    async def _enlarged(
        self, row: Row, hires: Mapping[str, Any], told: Told
    ) -> tuple[bytes, float]:
        """Return what the second pass begins with, and the device-seconds that it took.

        The second pass resizes it to its own size.
        """
        encode_s = row.programs.encode_times.median or 0.0
        if hires["upscaler"] == LATENT:
            with explained("enlarging the latents"):
                return await self._run("keep", self._latents_file, row), encode_s
        pixels, _ = parted(await self._decoded(row, told))
        around_s = row.programs.around_s
        if hires["upscaler"] != LANCZOS:
            asked = {
                "name": hires["upscaler"],
                "scale": self.upscalers.loaded(hires["upscaler"]).spec.scale,
            }
            around_s += self.upscalers.seconds(asked, pixels.shape)
            pixels = await self._upscaled(asked, pixels, told.on_stage)
        return await self._run("prepare", image_file, pixels), around_s

    def _latents_file(self, row: Row) -> bytes:
        leaves = self._launcher.leaves(row.known)
        latents = jnp.asarray(self._launcher.fetch(leaves[LATENTS]))
        shapes = row.programs.row.result()
        return latents_file(np.asarray(self.pipeline.spatial({**shapes, "latents": latents})))

    async def _decoded(self, row: Row, told: Told) -> PyTree:
        told.on_stage("decoding", None)
        with explained("decoding the image"), stage(self.pipeline.spec.name, "decode"):
            return await self._decode(row)

    async def _upscaled(
        self, asked: Mapping[str, Any] | None, pixels: np.ndarray, on_stage: OnStage
    ) -> np.ndarray:
        """Draw an image larger, where that is asked for; between tiles it may be canceled."""
        if not asked:
            return pixels
        on_stage("upscaling", None)
        with explained("upscaling the image"), stage(self.pipeline.spec.name, "upscale"):
            upscaling = await self._run("upscale", self.upscalers.begin, asked, pixels)
            for work in upscaling.works():
                await self._run("upscale", work)
            return await self._run("upscale", upscaling.image)

    async def _draw(
        self,
        programs: BucketPrograms,
        one: ImagePass,
        begin: RowSnapshot | None,
        on_step: Callable[[Row], None],
    ) -> Row:
        """Encode a request and denoise it to its end, or from a snapshot on."""
        model, prepared = self.pipeline.spec.name, one.prepared
        with explained("encoding the prompt"):
            with stage(model, "encode"):
                state = await self._run("encode", self._encode, programs, prepared)
            start = Checked(state, 0, one.device_seconds)
            if begin is not None:
                start = await self._run("encode", self._take_up, programs, one, start, begin)
                one = replace(one, earlier_s=start.device_seconds)
        with explained("denoising"), stage(model, "denoise") as span:
            row = await self._denoise(programs, one, start, marking(span, on_step))
            span.set(span_attributes(row, start))
        return row

    async def preview(self, row: Row) -> np.ndarray:
        """A small image of an unfinished row: uint8 [h, w, 3]; of a video [frames, h, w, 3]."""
        return await self._show("preview", row.programs.preview, row)

    async def take_snapshot(self, row: Row) -> RowSnapshot:
        """Copy what another engine needs to go on with this row, beside its steps.

        Raises: EngineDied.
        """
        return await self._run("keep", self._fetch, row.checked, row)

    def snapshot_bytes(self, row: Row) -> int | None:
        """Bytes that `take_snapshot` copies; None: a part lies on devices of other hosts."""
        leaves = self._leaves_to_keep(row, row.known).values()
        here = all(leaf.is_fully_addressable or leaf.is_fully_replicated for leaf in leaves)
        return sum(leaf.nbytes for leaf in leaves) if here else None

    async def hold(self, row: Row) -> None:
        """Stop stepping a row, which keeps its slot.

        Returns when no step of it is under way: never where it has ended meanwhile.
        """
        still = asyncio.Event()
        self.step_loop.hold(row, partial(self._loop.call_soon_threadsafe, still.set))
        await still.wait()

    def go_on(self, row: Row) -> None:
        """Step a row again that was held."""
        self.step_loop.go_on(row)

    def close(self) -> None:
        """Stop after the step in flight. Images that are not done never will be."""
        self.step_loop.close(STUCK_S if self.died.done() else None)
        self.programs.close()
        self.adapters.close()
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    async def _compiled(
        self,
        fields: Fields,
        prepared: Prepared,
        on_stage: OnStage = lambda stage, s: None,
        on_compile: Callable[[Compilation], None] = lambda compilation: None,
    ) -> BucketPrograms:
        """Return this image's programs, as soon as it can begin with them."""
        programs = self._programs_of(fields, prepared)
        own = programs.compilation if programs.compilation.take() else None
        if own:
            on_compile(own)
        phases = {step.phase for step in prepared.steps}
        needed = programs.to_begin(signature(prepared.inputs), phases)
        missing = [program for program in needed if not is_ready(program)]
        if missing:
            telling = self._telling({programs.made_by[one] for one in missing}, fields, on_stage)
            with self.programs.awaited(programs, prepared), telling:
                await ready(*missing)
            if own:
                self._learn(own, fields)
        return programs

    @contextmanager
    def _telling(
        self, compilations: Iterable[Compilation], fields: Fields, on_stage: OnStage
    ) -> Iterator[None]:
        """Inside, an image waits for programs of these."""
        bucket = self.costs.bucket(fields)
        expected_s = self.costs.expected_s(bucket) if bucket else None
        waits = True

        def tell() -> None:
            if waits:
                on_stage("compiling", expected_s)

        for compilation in compilations:
            compilation.on_begin(partial(self._loop.call_soon_threadsafe, tell))
        try:
            yield
        finally:
            waits = False

    def _learn(self, compilation: Compilation, fields: Fields) -> None:
        """Record how long compiling took, for the next estimate and for the next start."""
        bucket, took_s = self.costs.bucket(fields), compilation.can_begin()
        if took_s is not None and bucket:
            self.costs.compiled(bucket, took_s)
            self._threads["keep"].submit(self._compiler.record_compile_s, bucket, took_s)

    async def look_for(self, buckets: Iterable[str]) -> None:
        """Find out which of the queue's buckets need not be compiled.

        Their programs lie in files, where others may have put them since they were looked for.
        """
        for bucket in set(buckets) - self.costs.in_files.keys():
            if self._loop.time() < self._look_again.get(bucket, 0.0):
                continue
            self._look_again[bucket] = self._loop.time() + LOOK_AGAIN_S
            took_s = await self._run("keep", self._compiler.known_compile_s, bucket)
            if took_s is not None:
                self.costs.in_files[bucket] = took_s

    def _programs_of(self, fields: Fields, prepared: Prepared) -> BucketPrograms:
        programs = self.programs.of(prepared)
        self.programs.count(programs, prepared)
        self.costs.uses(fields, programs)
        return programs

    def _encode(self, programs: BucketPrograms, prepared: Prepared) -> PyTree:
        program = programs.encoders[signature(prepared.inputs)].result()
        with programs.encode_times.timing():
            return self._launcher.wait(program(self._weights, dict(prepared.inputs)))

    def _fetch(self, checked: Checked, row: Row) -> RowSnapshot:
        leaves = self._leaves_to_keep(row, checked.state).items()
        copied = {name: self._launcher.fetch(leaf) for name, leaf in leaves}
        return RowSnapshot(row.before + checked.done, checked.device_seconds, copied)

    def _leaves_to_keep(self, row: Row, state: PyTree) -> dict[str, jax.Array]:
        names = needed(row.programs.changes(row.steps), self.batching.is_exact)
        leaves = self._launcher.leaves(state).items()
        return {name: leaf for name, leaf in leaves if name in names}

    async def _decode(self, row: Row) -> PyTree:
        return await self._show("decode", row.programs.decode, row, row.programs.decode_times)

    async def _show(
        self, stage: str, program: Compiling, row: Row, times: Recent | None = None
    ) -> PyTree:
        """Pixels of a row as it is now, on the host; of a finished one with its sound."""
        await ready(program)

        def pixels(state: PyTree) -> PyTree:
            with times.timing() if times else nullcontext():
                return self._launcher.fetch(program.result()(self._weights, state))

        return await self._run(stage, pixels, row.known)

    def _take_up(
        self, programs: BucketPrograms, one: ImagePass, start: Checked, snapshot: RowSnapshot
    ) -> Checked:
        """Return where the image begins: after the steps done before, if they were its own.

        Raises: UnfitSnapshot: they were not, and a second pass cannot begin without its first.
        """
        row, steps = self._launcher.leaves(start.state), one.prepared.steps
        snapshot = replace(snapshot, done=snapshot.done - one.before)
        try:
            names = needed(programs.changes(steps), self.batching.is_exact)
            check_fit(snapshot, row, names, len(steps))
        except UnfitSnapshot as error:
            if one.before:
                raise
            log.warning("an image begins anew, its snapshot does not fit: %s", error)
            return start
        state = self._launcher.wait(self._launcher.restore(start.state, snapshot.leaves))
        return Checked(state, snapshot.done, snapshot.device_seconds)

    async def _denoise(
        self,
        programs: BucketPrograms,
        one: ImagePass,
        start: Checked,
        on_step: Callable[[Row], None],
    ) -> Row:
        """Denoise through the step loop; a canceled task takes its row out of it."""
        ended: asyncio.Future[Row] = self._loop.create_future()

        def hand_over(row: Row, failure: GenerationFailed | None) -> None:
            self._loop.call_soon_threadsafe(resolve, ended, row, failure)

        def report(row: Row) -> None:
            self._loop.call_soon_threadsafe(on_step, row)

        row = Row(
            programs,
            one.prepared.steps,
            start.state,
            on_step=report,
            on_end=hand_over,
            done=start.done,
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
            return await self._unless_dead(ended)
        finally:
            row.canceled = True

    def die(self, error: Exception) -> None:
        """Stop launching for good, for this reason. From any thread."""
        if not isinstance(error, EngineDied):
            error = EngineDied(f"the step loop ended by {type(error).__name__}: {error}")
        self._loop.call_soon_threadsafe(self._bury, error)

    def _bury(self, died: EngineDied) -> None:
        if not self.died.done():
            self.died.set_result(died)

    async def _run(self, stage: str, function: Callable[..., T], *args: Any) -> T:
        """Run a function in the stage's thread."""
        here = copy_context()  # so that what is said there is told as this job's
        work = self._loop.run_in_executor(self._threads[stage], here.run, function, *args)
        return await self._unless_dead(work)

    async def _unless_dead(self, work: asyncio.Future[T]) -> T:
        """Await work that a dead engine may never end. Raises: EngineDied."""
        either: list[asyncio.Future[Any]] = [work, self.died]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise self.died.result()
            return work.result()
        finally:
            work.cancel()


def resolve(ended: asyncio.Future[Row], row: Row, failure: GenerationFailed | None) -> None:
    """Set the future to the row, or to its failure."""
    if ended.done():  # canceled in the meantime
        return
    if failure is None:
        ended.set_result(row)
    else:
        ended.set_exception(failure)


async def ready(*programs: Future[Any]) -> None:
    """Wait for programs that others may be waiting for too: canceling this leaves them alone."""
    await asyncio.gather(*(asyncio.shield(asyncio.wrap_future(program)) for program in programs))


def span_attributes(row: Row, start: Checked) -> Attributes:
    """Return the span attributes of a finished denoising."""
    return {
        "atelier.steps": len(row.steps),
        "atelier.steps.before": start.done,
        "atelier.device_s": row.device_seconds - start.device_seconds,
    }
