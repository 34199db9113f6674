"""Compiled programs of requests: looked up, or compiled on first use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from models.interface.pipeline import Fields, PreparedRow
from workers.engine.latency_stats import LatencyStats
from workers.engine.observer import UNOBSERVED, Observer
from workers.engine.stages import Stages, ready
from workers.programs.bucket_programs import BucketPrograms, is_ready
from workers.programs.cache import ProgramCache
from workers.programs.compilation import Compilation
from workers.programs.compiler import Compiler, signature

log = logging.getLogger(__name__)

LOOKUP_EVERY_S = 60.0
"""Seconds before a bucket's programs are looked up in files again; a lookup takes 0.2 ms."""


class RequestPrograms:
    """Lookup of the compiled programs that a request needs. Use it from the engine's event loop.

    Args:
        costs: records the programs that images use, and compile times.
    """

    def __init__(
        self,
        programs: ProgramCache,
        compiler: Compiler,
        costs: LatencyStats,
        stages: Stages,
    ) -> None:
        self._programs = programs
        self._compiler = compiler
        self._costs = costs
        self._stages = stages
        self._next_lookup_at: dict[str, float] = {}
        """Loop time from which a bucket may be looked up in files again."""

    async def warm_up(self, fields: Fields, prepared: PreparedRow) -> None:
        """Compile the programs that an image needs alone. Raises: a required program's error."""
        await self.find_stored(filter(None, [self._costs.bucket(fields)]))
        programs = self._of(fields, prepared, larger=False)
        programs.compilation.take()  # not charged to any job
        await ready(*programs.necessary())
        self._record(programs.compilation, fields)

    def begin_larger(self, prepared: PreparedRow) -> None:
        """Begin to compile larger batches in the background."""
        programs = self._programs.of(prepared)
        programs.compilation.take()
        for program in programs.optional():
            program.add_done_callback(log_failure)

    async def larger_ready(self, prepared: PreparedRow) -> None:
        """Wait until the larger batches of an image have compiled or failed to compile."""
        larger = map(asyncio.wrap_future, self._programs.of(prepared).optional())
        await asyncio.gather(*map(asyncio.shield, larger), return_exceptions=True)

    async def compiled(
        self,
        fields: Fields,
        prepared: PreparedRow,
        observer: Observer = UNOBSERVED,
    ) -> BucketPrograms:
        """Return a request's programs once those needed to begin are compiled.

        Raises: the error of a required program.
        """
        programs = self._of(fields, prepared)
        charged = programs.compilation if programs.compilation.take() else None
        if charged:
            observer.on_compile(charged)
        step_programs = {step.program for step in prepared.steps}
        needed = programs.to_begin(signature(prepared.inputs), step_programs)
        missing = [program for program in needed if not is_ready(program)]
        if missing:
            reporting = self._reporting(
                {programs.made_by[future] for future in missing}, fields, observer
            )
            with self._programs.awaited(programs, prepared), reporting:
                await ready(*missing)
            if charged:
                self._record(charged, fields)
        return programs

    async def find_stored(self, buckets: Iterable[str]) -> None:
        """Check which of the queue's buckets have stored executables.

        Other workers may have added files since the previous lookup.
        """
        loop = self._stages.loop
        for bucket in set(buckets) - self._costs.stored_compile_s.keys():
            if loop.time() < self._next_lookup_at.get(bucket, 0.0):
                continue
            self._next_lookup_at[bucket] = loop.time() + LOOKUP_EVERY_S
            took_s = await self._stages.run("keep", self._compiler.recorded_compile_s, bucket)
            if took_s is not None:
                self._costs.stored_compile_s[bucket] = took_s

    @contextmanager
    def _reporting(
        self, compilations: Iterable[Compilation], fields: Fields, observer: Observer
    ) -> Iterator[None]:
        """Report the stage `compiling` while an image waits for programs of these compilations."""
        bucket = self._costs.bucket(fields)
        expected_s = self._costs.expected_s(bucket) if bucket else None
        waits = True

        def report() -> None:
            if waits:
                observer.on_stage("compiling", expected_s)

        for compilation in compilations:
            compilation.on_begin(partial(self._stages.loop.call_soon_threadsafe, report))
        try:
            yield
        finally:
            waits = False

    def _record(self, compilation: Compilation, fields: Fields) -> None:
        """Record how long compiling took, for the next estimate and for the next start."""
        bucket, took_s = self._costs.bucket(fields), compilation.can_begin()
        if took_s is not None and bucket:
            self._costs.compiled(bucket, took_s)
            self._stages.begin("keep", self._compiler.record_compile_s, bucket, took_s)

    def _of(self, fields: Fields, prepared: PreparedRow, larger: bool = True) -> BucketPrograms:
        programs = self._programs.of(prepared, larger)
        self._programs.count(programs, prepared)
        self._costs.uses(fields, programs)
        return programs


def log_failure(program: Future[Any]) -> None:
    """Log the error of a larger batch's program that failed to compile."""
    if not program.cancelled() and (error := program.exception()):
        log.warning("this batch size does not compile and is not used: %s", error)
