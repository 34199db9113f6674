"""Engine: pictures and clips from requests, many at a time, on one mesh slice.

`generate` is the whole path of one picture. Each stage has its own thread, so that none of them
holds up the step loop: the device waits for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from models.pipeline import Fields, Pipeline, Prepared, PyTree
from models.sharding import Layout
from service.jobs import spans
from service.jobs.spans import Attributes
from workers import warmup
from workers.compiler import Compiler, signature
from workers.costs import Costs
from workers.errors import EngineDied, PictureFailed, picture_failed
from workers.executables import Executables
from workers.kept import Kept, Unfit, check_fit
from workers.launch import Launcher, OneHost
from workers.meter import Meter
from workers.programs import Programs
from workers.row import Checked, Row
from workers.shape import Compiling, Shape
from workers.stages import marking, stage
from workers.step_times import Recent
from workers.stepper import Stepper

log = logging.getLogger(__name__)
T = TypeVar("T")

STUCK_S = 1.0
"""How long a dead engine waits for its last step, which may wait for a device that is gone."""


@dataclass(frozen=True)
class Picture:
    """One finished picture or clip; `device_seconds` is its share of the steps with it, and what
    its encoding and decoding take."""

    pixels: np.ndarray
    """uint8 [height, width, 3]; of a clip [frames, height, width, 3]."""
    seed: int
    steps: int
    device_seconds: float


class Engine:
    """One pipeline on one mesh slice, to be used from one event loop.

    Args:
        layout: how the slice splits its work.
        slots: pictures that are denoised together at the most.
        batch_sizes: compiled ones; empty: 1, 2, 4, … up to `slots`.
        elastic: whether pictures are also worked on side by side, each by a part of the slice.
        launcher: where a launch goes besides this process.
        kept: where programs may be that need not be compiled.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        layout: Layout,
        slots: int,
        batch_sizes: tuple[int, ...] = (),
        elastic: bool = True,
        launcher: Launcher | None = None,
        kept: Executables | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.layout = layout
        self.slots = slots
        self.costs = Costs(pipeline.spec)
        self._loop = asyncio.get_running_loop()
        self.died: asyncio.Future[EngineDied] = self._loop.create_future()
        """Has a result only if nothing can be launched any more."""
        self._launcher = launcher or OneHost()
        compiler = Compiler(pipeline, layout, kept)
        self._weights = compiler.weights.common
        self.programs = Programs(
            compiler, self._launcher, compiler.ways(batch_sizes or powers_of_two(slots), elastic)
        )
        # One thread a stage: at most one encode and one decode share the device with the steps.
        stages = ("prepare", "encode", "decode", "preview", "keep")
        self._threads = {stage: ThreadPoolExecutor(1, stage) for stage in stages}
        meter = Meter(pipeline.spec.name, compiler.layout_of)
        self.stepper = Stepper(meter, compiler.weights, slots, self._launcher.fetch, self.die)
        self.stepper.start()
        self._launcher.on_loss(self.die)

    async def warm_up(self, requests: Sequence[Fields]) -> None:
        """Compile all that these requests run. Raises: the error of a program they need."""
        for fields in requests:
            prepared = await self._run("prepare", warmup.prepare, self.pipeline, fields)
            shape = self._shape(fields, prepared)
            await ready(*shape.necessary())
            for program in shape.optional():
                try:
                    await ready(program)
                except Exception as error:
                    log.warning("this batch size does not compile and is not used: %s", error)

    async def try_out(self, fields: Fields, steps: int) -> Shape:
        """A warm-up request's first steps of each phase, and its picture: nobody sees it, but its
        shape, which is returned, knows then how long all that takes.

        Raises: PictureFailed, EngineDied: as `generate`.
        """
        try:
            prepared = await self._run("prepare", warmup.prepare, self.pipeline, fields)
            few = warmup.first_steps(prepared.steps, steps)
            shape = await self._compiled(fields, prepared)
            state = await self._run("encode", self._encode, shape, prepared)
            start = Checked(state, 0, 0.0)
            row = await self._denoise(shape, replace(prepared, steps=few), start, lambda row: None)
            await self._decode(row)
        except (EngineDied, PictureFailed):
            raise
        except Exception as error:
            raise picture_failed(error, "trying it out") from error
        return shape

    async def generate(
        self,
        fields: Fields,
        images: Mapping[str, bytes],
        on_step: Callable[[Row], None] = lambda row: None,
        begin: Kept | None = None,
    ) -> Picture:
        """One picture from one request. To cancel it, cancel the task.

        Args:
            on_step: told of each step that is done, in the event loop.
            begin: how far it was before; None, or what does not fit it: it begins anew.

        Raises:
            PictureFailed: this picture cannot be made; its neighbours are unharmed.
            EngineDied: no picture can be made any more by this process.
        """
        doing, model = "preparing the request", self.pipeline.spec.name
        try:
            with spans.span("prepare"):
                prepared = await self._run("prepare", self.pipeline.prepare, fields, images)
            doing = "compiling"
            with spans.span("compile"):
                shape = await self._compiled(fields, prepared)
            doing = "encoding the prompt"
            with stage(model, "encode"):
                state = await self._run("encode", self._encode, shape, prepared)
            start = Checked(state, 0, 0.0)
            if begin is not None:
                start = await self._run("encode", self._take_up, shape, prepared, start, begin)
            doing = "denoising"
            with stage(model, "denoise") as span:
                row = await self._denoise(shape, prepared, start, marking(span, on_step))
                span.set(told_of(row, start))
            doing = "decoding the picture"
            with stage(model, "decode"):
                pixels = await self._decode(row)
        except (EngineDied, PictureFailed):
            raise
        except Exception as error:
            raise picture_failed(error, doing) from error
        return Picture(pixels, prepared.seed, row.done, row.device_seconds + shape.around_s)

    async def preview(self, row: Row) -> np.ndarray:
        """A small picture of an unfinished row: uint8 [h, w, 3]; of a clip [frames, h, w, 3]."""
        return await self._show("preview", row.shape.preview, row)

    async def keep(self, row: Row) -> Kept:
        """What another engine needs to go on with this row, copied beside its steps.

        Raises: EngineDied.
        """
        return await self._run("keep", self._fetch, row.checked, row)

    def kept_bytes(self, row: Row) -> int:
        """Of what `keep` copies."""
        leaves = self._launcher.leaves(row.known)
        return sum(leaf.nbytes for name, leaf in leaves.items() if name in row.changes)

    async def hold(self, row: Row) -> None:
        """Stop stepping a row, which keeps its slot. Returns when no step of it is under way: never
        where it has ended meanwhile."""
        still = asyncio.Event()
        self.stepper.hold(row, partial(self._loop.call_soon_threadsafe, still.set))
        await still.wait()

    def go_on(self, row: Row) -> None:
        """Step a row again that was held."""
        self.stepper.go_on(row)

    def close(self) -> None:
        """Stop after the step in flight. Pictures that are not done never will be."""
        self.stepper.close(STUCK_S if self.died.done() else None)
        self.programs.close()
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    async def _compiled(self, fields: Fields, prepared: Prepared) -> Shape:
        """This picture's shape, as soon as it can begin with it."""
        shape = self._shape(fields, prepared)
        phases = {step.phase for step in prepared.steps}
        await ready(*shape.to_begin(signature(prepared.inputs), phases))
        return shape

    def _shape(self, fields: Fields, prepared: Prepared) -> Shape:
        shape = self.programs.shape(prepared)
        self.programs.count(shape, prepared)
        self.costs.uses(fields, shape)
        return shape

    def _encode(self, shape: Shape, prepared: Prepared) -> PyTree:
        program = shape.encoders[signature(prepared.inputs)].result()
        with shape.encode_times.timing():
            return self._launcher.wait(program(self._weights, dict(prepared.inputs)))

    def _fetch(self, checked: Checked, row: Row) -> Kept:
        leaves = {
            name: self._launcher.fetch(leaf)
            for name, leaf in self._launcher.leaves(checked.state).items()
            if name in row.changes
        }
        return Kept(checked.done, checked.device_seconds, leaves)

    async def _decode(self, row: Row) -> np.ndarray:
        return await self._show("decode", row.shape.decode, row, row.shape.decode_times)

    async def _show(
        self, stage: str, program: Compiling, row: Row, times: Recent | None = None
    ) -> np.ndarray:
        """Pixels of a row as it is now, on the host."""
        await ready(program)

        def pixels(state: PyTree) -> np.ndarray:
            with times.timing() if times else nullcontext():
                return self._launcher.fetch(program.result()(self._weights, state))

        return await self._run(stage, pixels, row.known)

    def _take_up(self, shape: Shape, prepared: Prepared, start: Checked, kept: Kept) -> Checked:
        """Where the picture begins: after the steps that were done before, if they were its own."""
        row = self._launcher.leaves(start.state)
        try:
            check_fit(kept, row, shape.changes(prepared.steps), len(prepared.steps))
        except Unfit as error:
            log.warning("a picture begins anew, its snapshot does not fit: %s", error)
            return start
        state = self._launcher.wait(self._launcher.restore(start.state, kept.leaves))
        return Checked(state, kept.done, kept.device_seconds)

    async def _denoise(
        self, shape: Shape, prepared: Prepared, start: Checked, on_step: Callable[[Row], None]
    ) -> Row:
        """Through the step loop; a canceled task takes its row out of it."""
        ended: asyncio.Future[Row] = self._loop.create_future()

        def hand_over(row: Row, failure: PictureFailed | None) -> None:
            self._loop.call_soon_threadsafe(resolve, ended, row, failure)

        def report(row: Row) -> None:
            self._loop.call_soon_threadsafe(on_step, row)

        row = Row(
            shape,
            prepared.steps,
            start.state,
            on_step=report,
            on_end=hand_over,
            done=start.done,
            device_seconds=start.device_seconds,
        )
        if row.all_sent:
            return row
        try:
            self.stepper.submit(row)
            return await self._unless_dead(ended)
        finally:
            row.canceled = True

    def die(self, error: Exception) -> None:
        """Nothing can be launched any more, for this reason. From any thread."""
        if not isinstance(error, EngineDied):
            error = EngineDied(f"the step loop ended by {type(error).__name__}: {error}")
        self._loop.call_soon_threadsafe(self._bury, error)

    def _bury(self, died: EngineDied) -> None:
        if not self.died.done():
            self.died.set_result(died)

    async def _run(self, stage: str, function: Callable[..., T], *args: Any) -> T:
        """In the stage's thread."""
        here = copy_context()  # so that what is said there is told as this job's
        work = self._loop.run_in_executor(self._threads[stage], here.run, function, *args)
        return await self._unless_dead(work)

    async def _unless_dead(self, work: asyncio.Future[T]) -> T:
        """What work gives that a dead engine may never end. Raises: EngineDied."""
        either: list[asyncio.Future[Any]] = [work, self.died]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise self.died.result()
            return work.result()
        finally:
            work.cancel()


def resolve(ended: asyncio.Future[Row], row: Row, failure: PictureFailed | None) -> None:
    if ended.done():  # canceled in the meantime
        return
    if failure is None:
        ended.set_result(row)
    else:
        ended.set_exception(failure)


async def ready(*programs: Future[Any]) -> None:
    """Wait for programs that others may be waiting for too: canceling this leaves them alone."""
    await asyncio.gather(*(asyncio.shield(asyncio.wrap_future(program)) for program in programs))


def told_of(row: Row, start: Checked) -> Attributes:
    """What its span says of a denoising that is done."""
    return {
        "atelier.steps": len(row.steps),
        "atelier.steps.before": start.done,
        "atelier.device_s": row.device_seconds - start.device_seconds,
    }


def powers_of_two(slots: int) -> tuple[int, ...]:
    """1, 2, 4, … and `slots` itself."""
    return (*(2**i for i in range((slots - 1).bit_length())), slots)
