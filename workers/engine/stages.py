"""Stages of an engine: their threads, their programs on the device, and the engine's failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np

from models.interface.finite import CheckedOutput
from models.interface.pipeline import PreparedRow, PyTree
from workers.engine.errors import DECODERS, EngineFailed, not_finite
from workers.engine.fair_thread import FairThread
from workers.engine.prompt_cache import PromptCache, PromptLookup
from workers.engine.row import Row
from workers.programs.bucket_programs import BucketPrograms, Compiling
from workers.programs.compiler import signature
from workers.programs.launcher import Launcher
from workers.programs.step_latency import Recent

T = TypeVar("T")

STAGES = ("prepare", "encode", "decode", "upscale", "preview", "keep")


class Stages:
    """Threads of the stages around the step loop, one for each stage, shared by tenants in turn.

    At most one encode and one decode share the device with the steps. Create and use it in one
    event loop.

    Args:
        weights: the model's weights on the devices, except those of networks that take turns.
        prompts: cache of encoded prompts.
    """

    def __init__(self, launcher: Launcher, weights: PyTree, prompts: PromptCache) -> None:
        self.loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[EngineFailed] = self.loop.create_future()
        """Failure of the engine; completes only when no program can be launched any more."""
        self._launcher = launcher
        self._weights = weights
        self._prompts = prompts
        self._threads = {stage: FairThread(stage) for stage in STAGES}

    async def run(self, stage: str, function: Callable[..., T], *args: Any, tenant: str = "") -> T:
        """Run a function in the stage's thread, in the tenant's turn.

        Raises: EngineFailed, or the function's error.
        """
        context = copy_context()  # logs and spans in the thread belong to this job
        work = self._threads[stage].submit(tenant, context.run, function, *args)
        return await self.unless_failed(asyncio.wrap_future(work))

    def begin(self, stage: str, function: Callable[..., Any], *args: Any) -> None:
        """Start a function in the stage's thread without waiting for it."""
        self._threads[stage].submit("", function, *args)

    async def settled(self) -> None:
        """Wait until all functions in the stages' threads have ended. Raises: EngineFailed."""
        for stage in STAGES:
            await self.unless_failed(asyncio.wrap_future(self._threads[stage].settled()))

    async def unless_failed(self, work: asyncio.Future[T]) -> T:
        """Await a future that a failed engine may never complete. Raises: EngineFailed."""
        either: list[asyncio.Future[Any]] = [work, self.failure]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise self.failure.result()
            return work.result()
        finally:
            work.cancel()

    def encode(
        self, programs: BucketPrograms, prepared: PreparedRow, tenant: str | None = None
    ) -> PyTree:
        """Encode a prepared request into the state of a new row. Run it in the stage `encode`.

        The recorded times, by which jobs are charged, are those of whole encodings: a job costs the
        same whatever prompts came before it.

        Args:
            tenant: tenant whose encoded prompts may be reused; None: encode everything.
        """
        program = programs.encoders[signature(prepared.inputs)].result()
        reuses = tenant is not None and self._prompts.max_bytes
        lookup = PromptLookup(self._prompts, str(tenant), prepared) if reuses else None
        started = time.perf_counter()
        recall = (lookup,) if lookup else ()
        row = self._launcher.wait(program(self._weights, dict(prepared.inputs), *recall))
        if not (lookup and lookup.is_hit):
            programs.encode_times.observe(time.perf_counter() - started)
        return row

    async def decode(self, row: Row, tenant: str = "") -> PyTree:
        """Return the pixels of a tenant's finished row, and its sound, on the host.

        Raises: GenerationFailed: the output is not finite.
        """
        programs = row.programs
        return await self._show("decode", programs.decode, row, tenant, programs.decode_times)

    async def preview(self, row: Row, tenant: str = "") -> np.ndarray:
        """Return a preview of an unfinished row: uint8 [h, w, 3]; for a video [frames, h, w, 3].

        Raises: GenerationFailed: the preview is not finite.
        """
        preview: np.ndarray = await self._show("preview", row.programs.preview, row, tenant)
        return preview

    async def _show(
        self, stage: str, program: Compiling, row: Row, tenant: str, times: Recent | None = None
    ) -> PyTree:
        await ready(program)

        def decoded(state: PyTree) -> CheckedOutput:
            with times.timing() if times else nullcontext():
                output: CheckedOutput = self._launcher.fetch(program.result()(self._weights, state))
                return output

        output = await self.run(stage, decoded, row.verified_state, tenant=tenant)
        if output.non_finite_part:
            raise not_finite(DECODERS[stage, output.non_finite_part])
        return output.decoded

    def fail(self, error: Exception) -> None:
        """Record the failure of the engine, which ends all waits. Callable from any thread."""
        if not isinstance(error, EngineFailed):
            error = EngineFailed(f"the step loop ended by {type(error).__name__}: {error}")
        self.loop.call_soon_threadsafe(self._mark_failed, error)

    def _mark_failed(self, failure: EngineFailed) -> None:
        if not self.failure.done():
            self.failure.set_result(failure)

    def close(self) -> None:
        """Accept no more functions in the stages' threads; running ones continue to their end."""
        for thread in self._threads.values():
            thread.close()


async def ready(*programs: Future[Any]) -> None:
    """Wait for compiled programs that other images may await, too; cancels none of them."""
    await asyncio.gather(*(asyncio.shield(asyncio.wrap_future(program)) for program in programs))
