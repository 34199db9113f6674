"""Programs of an engine's images: found, or compiled when an image needs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from models.interface.pipeline import Fields, Prepared
from workers.engine.latency_stats import LatencyStats
from workers.engine.passes import OnStage
from workers.engine.stage_threads import StageThreads
from workers.programs.bucket_programs import BucketPrograms, is_ready
from workers.programs.cache import ProgramCache
from workers.programs.compilation import Compilation
from workers.programs.compiler import Compiler, signature

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
"""Pause before a bucket's programs are looked for in files again; a look takes 0.2 ms."""


class ImagePrograms:
    """Programs by image, to be used from the engine's event loop.

    Args:
        costs: is told of what images use, and of what compiling took.
    """

    def __init__(
        self,
        programs: ProgramCache,
        compiler: Compiler,
        costs: LatencyStats,
        stages: StageThreads,
    ) -> None:
        self._programs = programs
        self._compiler = compiler
        self._costs = costs
        self._stages = stages
        self._look_again: dict[str, float] = {}
        """Time from which a bucket may be looked for in files again, by the loop's clock."""

    async def warm_up(self, fields: Fields, prepared: Prepared) -> None:
        """Compile all that an image runs alone. Raises: the error of a program that it needs."""
        await self.look_for(filter(None, [self._costs.bucket(fields)]))
        programs = self._of(fields, prepared, larger=False)
        programs.compilation.take()  # nobody is charged for it
        await ready(*programs.necessary())
        self._learn(programs.compilation, fields)

    def begin_larger(self, prepared: Prepared) -> None:
        """Begin to compile larger batches, which nobody waits for."""
        programs = self._programs.of(prepared)
        programs.compilation.take()
        for program in programs.optional():
            program.add_done_callback(tell_unless_compiled)

    async def larger_ready(self, prepared: Prepared) -> None:
        """Wait until the larger batches of an image are compiled, or do not compile."""
        larger = map(asyncio.wrap_future, self._programs.of(prepared).optional())
        await asyncio.gather(*map(asyncio.shield, larger), return_exceptions=True)

    async def compiled(
        self,
        fields: Fields,
        prepared: Prepared,
        on_stage: OnStage = lambda stage, s: None,
        on_compile: Callable[[Compilation], None] = lambda compilation: None,
    ) -> BucketPrograms:
        """Return this image's programs, as soon as it can begin with them.

        Args:
            on_stage: told when its programs begin to be compiled, which most are not.
            on_compile: told what it has to pay for, if it is the first to need programs.

        Raises: the error of a program that it needs.
        """
        programs = self._of(fields, prepared)
        own = programs.compilation if programs.compilation.take() else None
        if own:
            on_compile(own)
        phases = {step.phase for step in prepared.steps}
        needed = programs.to_begin(signature(prepared.inputs), phases)
        missing = [program for program in needed if not is_ready(program)]
        if missing:
            telling = self._telling({programs.made_by[one] for one in missing}, fields, on_stage)
            with self._programs.awaited(programs, prepared), telling:
                await ready(*missing)
            if own:
                self._learn(own, fields)
        return programs

    async def look_for(self, buckets: Iterable[str]) -> None:
        """Find out which of the queue's buckets need not be compiled.

        Their programs lie in files, where others may have put them since they were looked for.
        """
        loop = self._stages.loop
        for bucket in set(buckets) - self._costs.in_files.keys():
            if loop.time() < self._look_again.get(bucket, 0.0):
                continue
            self._look_again[bucket] = loop.time() + LOOK_AGAIN_S
            took_s = await self._stages.run("keep", self._compiler.known_compile_s, bucket)
            if took_s is not None:
                self._costs.in_files[bucket] = took_s

    @contextmanager
    def _telling(
        self, compilations: Iterable[Compilation], fields: Fields, on_stage: OnStage
    ) -> Iterator[None]:
        """Inside, an image waits for programs of these."""
        bucket = self._costs.bucket(fields)
        expected_s = self._costs.expected_s(bucket) if bucket else None
        waits = True

        def tell() -> None:
            if waits:
                on_stage("compiling", expected_s)

        for compilation in compilations:
            compilation.on_begin(partial(self._stages.loop.call_soon_threadsafe, tell))
        try:
            yield
        finally:
            waits = False

    def _learn(self, compilation: Compilation, fields: Fields) -> None:
        """Record how long compiling took, for the next estimate and for the next start."""
        bucket, took_s = self._costs.bucket(fields), compilation.can_begin()
        if took_s is not None and bucket:
            self._costs.compiled(bucket, took_s)
            self._stages.begin("keep", self._compiler.record_compile_s, bucket, took_s)

    def _of(self, fields: Fields, prepared: Prepared, larger: bool = True) -> BucketPrograms:
        programs = self._programs.of(prepared, larger)
        self._programs.count(programs, prepared)
        self._costs.uses(fields, programs)
        return programs


def tell_unless_compiled(program: Future[Any]) -> None:
    """Log why a larger batch did not compile."""
    if not program.cancelled() and (error := program.exception()):
        log.warning("this batch size does not compile and is not used: %s", error)


async def ready(*programs: Future[Any]) -> None:
    """Wait for programs that others may be waiting for too: canceling this leaves them alone."""
    await asyncio.gather(*(asyncio.shield(asyncio.wrap_future(program)) for program in programs))
