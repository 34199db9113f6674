"""Parts of a backend that compiles nothing and generates one image at a time.

There is nothing to prepare but one trial of each warm-up request.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from statistics import median

from models.interface.pipeline import Fields
from models.spec.model_spec import ModelSpec
from service.jobs.scheduling.cost_model import CostKey, CostRow
from workers import metrics
from workers.engine.step_metrics import MAX_SHAPES, WHOLE, LabelValues
from workers.programs.bucket_programs import StepKind

MEMORY = 15
"""Latest images of a bucket that count."""
MAX_BUCKETS = 32
"""Maximum number of buckets recorded; the first is dropped."""


class ImageCosts:
    """Measured times of each bucket: medians of the latest images."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._shapes = LabelValues(MAX_SHAPES)
        self._times: dict[str, deque[tuple[float, float, float]]] = {}
        """Seconds of encoding, of a step, and of decoding, by bucket."""
        self.reported_compile_s: Mapping[str, float] = {}

    @property
    def available(self) -> tuple[str, ...]:
        """Buckets that were generated: like all others, they need no compilation."""
        return tuple(self._times)

    def is_compiled(self, bucket: str) -> bool:
        """Return True: nothing is compiled."""
        return True

    def bucket(self, fields: Fields) -> str | None:
        """Return the queue's bucket of a request; None: it lacks a field that forms it."""
        has_all = all(name in fields for name in self._spec.bucket_fields)
        return self._spec.bucket(fields) if has_all else None

    def record(self, fields: Fields, times: Sequence[float]) -> None:
        """Record an image. Callable from any thread.

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
    """Programs of a trial: none, so that no batch size is left to try."""

    step_kinds: Mapping[str, StepKind] = {}
    untried: Sequence[int] = ()


class TrialRuns:
    """Warm-up by trials of the first requests.

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
        """Run a request's first steps and decode. Raises: GenerationFailed, EngineFailed."""
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


class NoAdapters:
    """Adapters of a model that accepts none."""

    digests: list[str] = []  # noqa: RUF012 # never changed
    load_s = 0.0


class NoUpscalers:
    """Upscalers of a model without any."""

    def rows(self, layout: str, devices: int) -> dict[CostKey, CostRow]:
        """Return no costs."""
        return {}


class NoSteps:
    """Steps that JAX's profiler can record: none."""

    load = settled = 0
