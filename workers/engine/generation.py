"""Generation of one image: its passes, their stages, and what they cost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from models.interface.image_start import latents_file
from models.interface.pipeline import Fields, Pipeline, PyTree, split_sound
from models.media.pixels import on_white
from models.spec.hires import FIELD as HIRES
from models.spec.hires import LANCZOS, LATENT
from models.spec.output_options import is_transparent
from models.spec.upscalers import FIELD as UPSCALE
from service.tracing import spans
from service.tracing.spans import Attributes
from workers.engine.adapters import Adapters
from workers.engine.errors import GenerationFailed, generation_errors
from workers.engine.observer import Observer
from workers.engine.passes import (
    ImagePass,
    position_after,
    prepared_passes,
    with_warnings_of,
)
from workers.engine.request_programs import RequestPrograms
from workers.engine.row import Row, RowProgress
from workers.engine.row_snapshots import RowSnapshots
from workers.engine.snapshot import RowSnapshot, UnfitSnapshot
from workers.engine.stage_timing import marking
from workers.engine.stages import Stages
from workers.engine.step_loop import StepLoop
from workers.engine.upscaling import Upscalers
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.compilation import Compilation
from workers.programs.launcher import Launcher
from workers.programs.second_pass import image_file

T = TypeVar("T")

log = logging.getLogger(__name__)

LATENTS, DENOISED = "['latents']", "['denoised']"
"""Names of two leaves of a row: its latents, and its estimate of the clean latents."""


@dataclass(frozen=True)
class EngineOutput:
    """Finished image or video of an engine, with the device time it took.

    `device_seconds` is its share of the batched steps plus its encoding and decoding;
    `claim_seconds` excludes the time of earlier claims.
    """

    pixels: np.ndarray
    """uint8 [height, width, 3]; for a video [frames, height, width, 3]; for a transparent image
    [height, width, 4]."""
    seed: int
    steps: int
    device_seconds: float
    claim_seconds: float
    sound: np.ndarray | None = None
    """float32 [channels, samples] for a video with sound."""
    digests: tuple[int, ...] = ()
    """Digest of the latents after each step; empty if unknown."""


@dataclass(frozen=True)
class Draft:
    """Image stopped after some of its steps, which can be resumed."""

    row: Row
    """The row after its last step, for a snapshot."""
    preview: EngineOutput
    """Small preview decoded from the unfinished row."""


@dataclass(frozen=True)
class ImageRequest:
    """Request for one image or video from an engine.

    `tenant` may name adapters of its own, in addition to the operator's. `begin` is the snapshot to
    resume from; None, or a snapshot that does not fit: start at the first step.
    """

    fields: Fields
    images: Mapping[str, bytes]
    tenant: str = ""
    begin: RowSnapshot | None = None


@dataclass(frozen=True)
class Machinery:
    """Parts of an engine that all generations share."""

    pipeline: Pipeline
    launcher: Launcher
    stages: Stages
    programs: RequestPrograms
    adapters: Adapters
    upscalers: Upscalers
    snapshots: RowSnapshots
    step_loop: StepLoop

    async def idle(self) -> None:
        """Wait until the work of all images, canceled ones too, has ended. Raises: EngineFailed."""
        empty: asyncio.Future[None] = self.stages.loop.create_future()
        on_empty = partial(self.stages.loop.call_soon_threadsafe, empty.set_result, None)
        self.step_loop.when_empty(on_empty)
        await self.stages.unless_failed(empty)
        await self.adapters.settled()
        await self.stages.settled()


class Generation:
    """Generation of one image. To cancel it, cancel the task that runs it."""

    def __init__(self, machinery: Machinery, request: ImageRequest, observer: Observer) -> None:
        self._parts = machinery
        self._request = request
        self._observer = observer
        self._run = partial(machinery.stages.run, tenant=request.tenant)
        self._model = machinery.pipeline.spec.name

    async def run(self) -> EngineOutput:
        """Generate the image or video.

        Raises:
            GenerationFailed: this image cannot be generated; other images are unaffected.
            EngineFailed: this process can generate no more images.
            StoreError: an adapter's file cannot be fetched now.
        """
        upscale = self._request.fields.get(UPSCALE)
        first, second = await self._prepared()
        row = await self._denoised(first, second)
        pixels, sound = split_sound(await self._decoded(row))
        upscaled = await self._upscaled(upscale, pixels)
        extra_s = row.programs.encode_decode_s + self._parts.upscalers.seconds(
            upscale, pixels.shape
        )
        return EngineOutput(
            upscaled,
            first.prepared.seed,
            row.image_done,
            row.device_seconds + extra_s,
            row.claim_seconds + extra_s,
            sound,
            row.digests,
        )

    async def draft(self, stop_at: int) -> Draft:
        """Generate the image's first steps only. Raises: as `run`.

        Args:
            stop_at: number of steps, fewer than the first pass has.
        """
        first, _ = await self._prepared()
        shortened = replace(first, stop_at=stop_at, after=0, after_work=0.0)
        row = await self._pass(shortened, self._request.begin)
        self._observer.on_stage("decoding")
        with generation_errors("decoding the preview"):
            pixels = await self._parts.stages.preview(row, self._request.tenant)
        encode_s = row.programs.encode_times.median or 0.0
        preview = EngineOutput(
            pixels,
            first.prepared.seed,
            row.image_done,
            row.device_seconds + encode_s,
            row.claim_seconds + encode_s,
            digests=row.digests,
        )
        return Draft(row, preview)

    async def position(self, drafted: Fields, done: int) -> int:
        """Return the step at which the image continues a draft of another number of steps.

        Args:
            drafted: the draft's request.
            done: steps of the draft that have run.

        Raises: GenerationFailed: the schedule does not allow it.
        """
        request = replace(self._request, fields=drafted)
        first, _ = await self._prepared()
        draft, _ = await Generation(self._parts, request, self._observer)._prepared()
        with generation_errors("continuing the draft"):
            return position_after(draft.prepared.steps, done, first.prepared.steps)

    async def _prepared(self) -> tuple[ImagePass, ImagePass | None]:
        fields = self._request.fields
        embeddings = await self._parts.adapters.embeddings(fields, self._request.tenant)
        images = {**self._request.images, **embeddings}
        with generation_errors("preparing the request"), spans.span("prepare"):
            first, second = await self._with_inputs(
                prepared_passes, self._parts.pipeline, fields, images
            )
        self._observer.on_prepared(with_warnings_of(first, second))
        return first, second

    async def _with_inputs(self, prepare: Callable[..., T], *args: Any) -> T:
        """Prepare a pass, and report the CPU time if the request has input images."""
        cpu_s = 0.0

        def timed() -> T:
            nonlocal cpu_s
            began = time.thread_time()
            try:
                return prepare(*args)
            finally:
                cpu_s = time.thread_time() - began

        try:
            return await self._run("prepare", timed)
        finally:
            if self._request.images:
                self._observer.on_inputs_read(cpu_s)

    async def _denoised(self, first: ImagePass, second: ImagePass | None) -> Row:
        """Denoise all passes of the image, resuming in the pass that the snapshot belongs to."""
        begin = self._request.begin
        if second is None:
            return await self._pass(first, begin)
        if begin is not None and begin.done > second.before:
            try:
                return await self._pass(second, begin)
            except UnfitSnapshot as error:
                log.warning("an image starts over, its snapshot does not fit: %s", error)
                begin = None
        async with self._compiling(second) as compiling:
            row = await self._pass(first, begin)
            image, extra_s = await self._enlarged(row)
            with generation_errors("preparing the second pass"):
                from_image = partial(second.from_image, self._parts.pipeline, image, row, extra_s)
                second = await self._with_inputs(from_image)
            with generation_errors("compiling"):
                raise_failed(compiling)
            return await self._pass(second, None)

    @asynccontextmanager
    async def _compiling(self, later: ImagePass) -> AsyncIterator[asyncio.Future[Any]]:
        """Yield the compilation of a later pass's programs, queued after the current pass's."""
        compiled = self._parts.programs.compiled
        compiling = asyncio.ensure_future(
            compiled(later.fields, later.prepared, CompilationsOnly(self._observer))
        )
        try:
            yield compiling
        finally:
            compiling.cancel()
            # The pass itself reports the error.
            await asyncio.gather(compiling, return_exceptions=True)

    async def _pass(self, image_pass: ImagePass, begin: RowSnapshot | None) -> Row:
        """Denoise one pass, from its first step or from a snapshot.

        Raises: UnfitSnapshot: for a second pass, which cannot start without its first.
        """
        observer, parts = self._observer, self._parts
        with generation_errors("compiling"), spans.span("compile"):
            programs = await parts.programs.compiled(
                image_pass.fields, image_pass.prepared, observer
            )
        on_wait = partial(observer.on_stage, "loading_adapters")
        held = parts.adapters.reserved(image_pass.prepared, self._request.tenant, on_wait)
        with generation_errors("loading adapters"):
            async with held as placed:
                observer.on_stage("denoising")
                return await self._encode_and_denoise(
                    programs, replace(image_pass, prepared=placed), begin
                )

    async def _encode_and_denoise(
        self, programs: BucketPrograms, image_pass: ImagePass, begin: RowSnapshot | None
    ) -> Row:
        """Encode the request of one pass, and denoise it."""
        observer, parts = self._observer, self._parts
        with generation_errors("encoding the prompt"):
            with observer.timed(self._model, "encode"):
                encode, prepared = parts.stages.encode, image_pass.prepared
                tenant = self._request.tenant
                state = await self._run("encode", encode, programs, prepared, tenant)
            start = RowProgress(state, 0, image_pass.device_seconds, image_pass.digests)
            if begin is not None:
                resume = parts.snapshots.resume
                start = await self._run("encode", resume, programs, image_pass, start, begin)
                image_pass = replace(image_pass, earlier_s=start.device_seconds)
        with generation_errors("denoising"), observer.timed(self._model, "denoise") as span:
            on_step = marking(span, observer.on_step)
            row = await denoise(parts, programs, image_pass, start, on_step)
            span.set_attributes(span_attributes(row, start))
        return row

    async def _enlarged(self, row: Row) -> tuple[bytes, float]:
        """Return the input of the second pass, and the device-seconds of encoding and enlarging it.

        The second pass resizes the input to its own size. It resizes latents with the model's
        enlarger of that name, if any, during encoding. For a preset with smaller first steps, the
        input is their estimate of the clean latents.
        """
        hires, parts = self._request.fields.get(HIRES), self._parts
        encode_s = row.programs.encode_times.median or 0.0
        if hires is None or hires["upscaler"] in (LATENT, *parts.pipeline.spec.enlargers):
            name = LATENTS if hires else DENOISED
            with generation_errors("enlarging the latents"):
                return await self._run("keep", self._latents_file, row, name), encode_s
        pixels, _ = split_sound(await self._decoded(row))
        extra_s = row.programs.encode_decode_s
        if hires["upscaler"] != LANCZOS:
            scale = parts.upscalers.loaded(hires["upscaler"]).spec.scale
            options = {"name": hires["upscaler"], "scale": scale}
            extra_s += parts.upscalers.seconds(options, pixels.shape)
            pixels = await self._upscaled(options, pixels)
        return await self._run("prepare", image_file, pixels), extra_s

    def _latents_file(self, row: Row, name: str) -> bytes:
        parts = self._parts
        latents = jnp.asarray(parts.launcher.fetch(parts.launcher.leaves(row.verified_state)[name]))
        shapes = row.programs.row.result()
        return latents_file(np.asarray(parts.pipeline.spatial({**shapes, "latents": latents})))

    async def _decoded(self, row: Row) -> PyTree:
        self._observer.on_stage("decoding")
        with generation_errors("decoding the image"), self._observer.timed(self._model, "decode"):
            decoded = await self._parts.stages.decode(row, self._request.tenant)
        if not self._parts.pipeline.spec.has_alpha or is_transparent(self._request.fields):
            return decoded
        return await self._run("prepare", on_white, decoded)

    async def _upscaled(self, options: Mapping[str, Any] | None, pixels: np.ndarray) -> np.ndarray:
        """Upscale the image if the request says so; it can be canceled between tiles."""
        if not options:
            return pixels
        self._observer.on_stage("upscaling")
        with generation_errors("upscaling the image"), self._observer.timed(self._model, "upscale"):
            begin = self._parts.upscalers.begin
            upscaling = await self._run("upscale", begin, options, pixels)
            for work in upscaling.tile_tasks():
                await self._run("upscale", work)
            return await self._run("upscale", upscaling.image)


class CompilationsOnly(Observer):
    """Observer of a second pass that forwards compilations to charge, but no stages."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def on_compile(self, compilation: Compilation) -> None:
        """Forward the compilation to the image's observer."""
        self._observer.on_compile(compilation)


async def denoise(
    parts: Machinery,
    programs: BucketPrograms,
    image_pass: ImagePass,
    start: RowProgress,
    on_step: Callable[[Row], None],
) -> Row:
    """Denoise a row in the step loop; canceling the task removes the row."""
    loop = parts.stages.loop
    ended: asyncio.Future[Row] = loop.create_future()

    def hand_over(row: Row, failure: GenerationFailed | None) -> None:
        loop.call_soon_threadsafe(resolve, ended, row, failure)

    def report(row: Row) -> None:
        loop.call_soon_threadsafe(on_step, row)

    row = Row(
        programs,
        image_pass.prepared.steps,
        start.state,
        on_step=report,
        on_end=hand_over,
        done=start.done,
        stop_at=image_pass.stop_at,
        before=image_pass.before,
        after=image_pass.after,
        after_work=image_pass.after_work,
        device_seconds=start.device_seconds,
        earlier_s=image_pass.earlier_s,
        digests=start.digests,
    )
    if row.all_sent:
        return row
    try:
        parts.step_loop.submit(row)
        return await parts.stages.unless_failed(ended)
    finally:
        row.canceled = True


def resolve(ended: asyncio.Future[Row], row: Row, failure: GenerationFailed | None) -> None:
    """Complete an image's future with its row or its failure."""
    if ended.done():  # canceled in the meantime
        return
    if failure is None:
        ended.set_result(row)
    else:
        ended.set_exception(failure)


def raise_failed(compiling: asyncio.Future[Any]) -> None:
    """Raise the error of a failed compilation; ignore a pending or canceled compilation."""
    if compiling.done() and not compiling.cancelled() and (error := compiling.exception()):
        raise error


def span_attributes(row: Row, start: RowProgress) -> Attributes:
    """Return the span attributes of a finished denoising."""
    return {
        "atelier.steps": row.to_do,
        "atelier.steps.before": start.done,
        "atelier.device_s": row.device_seconds - start.device_seconds,
    }
