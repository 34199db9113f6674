"""Base of a backend that compiles nothing and generates one image at a time.

There is nothing to prepare but one trial of each warm-up request.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

import numpy as np

from models.interface.pipeline import Fields
from models.spec.model_spec import ModelSpec
from service.jobs.model.job import JobError
from service.jobs.scheduling.cost_model import CostKey, CostRow
from workers import metrics
from workers.engine.errors import EngineFailed, GenerationFailed, generation_errors, non_finite
from workers.engine.generation import Draft, ImageRequest
from workers.engine.observer import UNOBSERVED, Observer
from workers.engine.snapshot import RowSnapshot
from workers.engine.step_metrics import MAX_SHAPES, WHOLE, LabelValues
from workers.programs.batch_sizes import exact
from workers.programs.bucket_programs import StepKind

T = TypeVar("T")

UNSUPPORTED = GenerationFailed(
    JobError(code="invalid_request", message="a diffusers model cannot stop and resume")
)
MEMORY = 15
"""Latest images of a bucket that count."""
MAX_BUCKETS = 32
"""Maximum number of buckets recorded; the first is dropped."""


class ImageCosts:
    """Measured times of each bucket's images: medians of the latest ones."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._shapes = LabelValues(MAX_SHAPES)
        self._times: dict[str, deque[tuple[float, float, float]]] = {}
        """Seconds of encoding, of a step, and of decoding, by bucket."""
        self.reported_compile_s: Mapping[str, float] = {}

    @property
    def available(self) -> tuple[str, ...]:
        """Buckets whose images were generated: like all others, they need no compilation."""
        return tuple(self._times)

    def is_compiled(self, bucket: str) -> bool:
        """Return True: nothing is compiled."""
        return True

    def bucket(self, fields: Fields) -> str | None:
        """Return the queue's bucket of a request; None: it lacks a field that forms it."""
        has_all = all(name in fields for name in self._spec.bucket_fields)
        return self._spec.bucket(fields) if has_all else None

    def record(self, fields: Fields, times: Sequence[float]) -> None:
        """Record the times of an image. Callable from any thread.

        Args:
            times: start of the call, end of each step, end of the call.
        """
        bucket = self.bucket(fields)
        if bucket is None or len(times) < 3:
            return
        steps = [end - begin for begin, end in itertools.pairwise(times[1:-1])]
        first_s, last_s = times[1] - times[0], times[-1] - times[-2]
        step_s = median(steps) if steps else first_s
        self._times.setdefault(bucket, deque(maxlen=MEMORY)).append(
            (max(0.0, first_s - step_s), step_s, last_s)
        )
        if len(self._times) > MAX_BUCKETS:
            del self._times[next(iter(self._times))]
        self._count(bucket, [step_s, *steps])

    def _count(self, bucket: str, steps: Sequence[float]) -> None:
        model, shape = self._spec.name, self._shapes.name(bucket)
        metrics.steps.labels(model, shape, WHOLE).inc(len(steps))
        metrics.device_busy.labels(model).inc(sum(steps))
        for seconds in steps:
            metrics.step_seconds.labels(model, shape, WHOLE, "1").observe(seconds)

    def rows(self, layout: str, devices: int) -> dict[CostKey, CostRow]:
        """Return the measured costs per bucket."""
        rows = {}
        for bucket, times in self._times.copy().items():
            encode_s, step_s, decode_s = map(median, zip(*times.copy(), strict=True))
            rows[CostKey(bucket, layout, 1)] = CostRow(
                step_s=step_s,
                encode_s=encode_s,
                decode_s=decode_s,
                devices=devices,
                samples=len(times),
            )
        return rows


class NoPrograms:
    """Programs of a trial without compilation: none, so that no batch size is left to try."""

    step_kinds: Mapping[str, StepKind] = {}
    untried: Sequence[int] = ()


class TrialRuns:
    """Warm-up of a backend without compilation, by trials of the first requests.

    Args:
        run: runs the first steps of a request.
    """

    def __init__(self, run: Callable[[Fields, int], Awaitable[None]]) -> None:
        self._run = run

    async def warm_up(self, requests: Sequence[Fields]) -> None:
        """Return at once: the trials warm the device up."""

    async def larger_ready(self, requests: Sequence[Fields]) -> None:
        """Return at once: there are no batches."""

    async def try_out(
        self, fields: Fields, steps: int, others: asyncio.Barrier | None = None
    ) -> NoPrograms:
        """Run a request's first steps and decode it. Raises: GenerationFailed, EngineFailed."""
        await self._run(fields, steps)
        return NoPrograms()

    async def levels(self, fields: Fields) -> int:
        """Return 0: an image never depends on a batch."""
        return 0

    async def is_compiled(self, fields: Fields, images: Mapping[str, bytes]) -> bool:
        """Return True: nothing is compiled."""
        return True

    async def find_stored(self, buckets: Iterable[str]) -> None:
        """Return at once: nothing is stored."""


class NoUpscalers:
    """Upscalers of a model without any."""

    def rows(self, layout: str, devices: int) -> dict[CostKey, CostRow]:
        """Return no costs of upscaling."""
        return {}


class NoSteps:
    """Step counter of a backend whose steps JAX's profiler cannot record: always zero."""

    load = settled = 0


class Canceled(Exception):
    """End of a row whose request was canceled."""


@dataclass(eq=False)
class UncompiledRow:
    """Progress of one image, written by the backend's thread."""

    to_do: int
    """Steps of the image; corrected at its first step, since schedulers may add some."""
    on_step: Callable[[UncompiledRow], None]
    """Callback after each step, in the backend's thread."""
    done: int = 0
    is_ended: bool = False
    """Whether the image's call has ended, so that no step follows."""
    canceled: bool = False
    """Set from any thread: the row ends with its next step."""
    claim_seconds: float = 0.0
    """Seconds of the device from the start of the call to the last step."""
    after_work: float = 0.0
    preview: Future[np.ndarray | None] | None = None
    """Preview that the next step makes, if requested."""
    times: list[float] = field(default_factory=lambda: [time.perf_counter()])
    """Start of the call, and the end of each step."""

    @property
    def image_done(self) -> int:
        """Finished steps of the image, which has one pass."""
        return self.done

    @property
    def image_steps(self) -> int:
        """All steps of the image, which has one pass."""
        return self.to_do

    @property
    def all_sent(self) -> bool:
        """Return whether the image's last step has begun."""
        return self.done >= self.to_do

    def end(self) -> None:
        """Record the end of the image's call; a pending preview becomes None."""
        self.is_ended = True
        if wanted := self.preview:
            self.preview = None
            show(wanted, lambda: None)

    def advance(self, is_finite: bool, decode: Callable[[], np.ndarray | None]) -> None:
        """Record a finished step of the image.

        Args:
            is_finite: whether its latents are.
            decode: decodes them to a preview.

        Raises: Canceled; GenerationFailed: the latents are not finite.
        """
        self.done += 1
        self.to_do = max(self.to_do, self.done)
        self.times.append(time.perf_counter())
        self.claim_seconds = self.times[-1] - self.times[0]
        if not is_finite:
            raise non_finite(self.done, self.to_do)
        self.on_step(self)
        if self.canceled:
            raise Canceled
        if wanted := self.preview:
            self.preview = None
            show(wanted, decode)


def show(wanted: Future[np.ndarray | None], decode: Callable[[], np.ndarray | None]) -> None:
    """Complete a requested preview, or its error if decoding fails, unless it was canceled."""
    if not wanted.set_running_or_notify_cancel():
        return
    try:
        wanted.set_result(decode())
    except Exception as error:
        wanted.set_exception(error)


class UncompiledBackend:
    """Base of a backend that generates one image at a time, in a thread of its own.

    Use it from one event loop.

    Args:
        try_steps: runs the first steps of a warm-up request.
    """

    slots = 1

    def __init__(
        self, spec: ModelSpec, try_steps: Callable[[Fields, int], Awaitable[None]]
    ) -> None:
        self.batching = exact()
        self.costs = ImageCosts(spec)
        self.readiness = TrialRuns(try_steps)
        self.upscalers, self.step_loop = NoUpscalers(), NoSteps()
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[EngineFailed] = self._loop.create_future()
        self._thread = ThreadPoolExecutor(1, "backend")
        self._row: UncompiledRow | None = None
        """Image in progress."""
        metrics.slots.labels(spec.name).set(1)

    async def in_thread(self, function: Callable[[], T], row: UncompiledRow | None = None) -> T:
        """Run a function in the backend's thread, after earlier ones; cancel a row with it.

        Raises: GenerationFailed; EngineFailed: the device can be used no more.
        """
        if self.failure.done():
            raise self.failure.result()
        try:
            with generation_errors("generating the image"):
                return await self._loop.run_in_executor(self._thread, function)
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

    async def position(
        self, request: ImageRequest, drafted: Fields, done: int, observer: Observer = UNOBSERVED
    ) -> int:
        """Raise GenerationFailed: admission refuses such requests."""
        raise UNSUPPORTED

    async def preview(self, row: UncompiledRow, tenant: str = "") -> np.ndarray | None:
        """Return a preview made after the row's next step; None: there is none."""
        wanted: Future[np.ndarray | None] = Future()
        row.preview = wanted
        if row.is_ended:
            return None
        return await asyncio.wrap_future(wanted)

    async def take_snapshot(self, row: UncompiledRow, tenant: str = "") -> RowSnapshot:
        """Raise GenerationFailed: an image's state cannot be copied."""
        raise UNSUPPORTED

    def close(self) -> None:
        """Accept no more images; the one in progress ends with its next step."""
        if self._row:
            self._row.canceled = True
        self._thread.shutdown(wait=False, cancel_futures=True)
