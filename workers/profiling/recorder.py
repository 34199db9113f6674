"""Profiler of a running worker, on request through Redis.

The worker keeps running. A child process with low priority reads the recording.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

from service.jobs.profiles import MAX_S, MAX_STEPS, ProfileRequest
from service.jobs.queue import Queue
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from service.settings.installation import IMPORT_ROOT
from workers import metrics
from workers.engine.backend import Backend
from workers.retry import QUEUE_ERRORS

CHECK_EVERY_S = 1.0
"""Interval of polling for requests; a poll costs Redis less than a heartbeat."""
POLL_S = 0.02
READ_S = 100.0
"""Time limit for reading a recording; the client waits a little longer."""
AROUND = 2
"""Extra steps to record, because the first one begins before the recording."""
RETENTION_S = 300.0
"""Lifetime of a recording in the store."""
NICENESS = 10
FILES = (".xplane.pb", ".trace.json.gz")

log = logging.getLogger(__name__)


class Unreadable(Exception):
    """Error of an unreadable profile recording; states the reason and the remedy."""


class Profiler:
    """Profiler of one worker, which records JAX traces for requests in Redis."""

    def __init__(self, pool: str, engine: Backend, queue: Queue, store: Store) -> None:
        self._pool = pool
        self._engine = engine
        self._queue = queue
        self._store = store
        self._cleanups: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Record requested profiles one at a time, until canceled."""
        while True:
            try:
                if request := await self._queue.requested_profile(self._pool):
                    await self._fulfil(request)
            except QUEUE_ERRORS as error:
                log.info("profile requests cannot be read now: %s", error)
            except (TypeError, ValueError) as error:  # command of another version
                log.warning("a profile request is invalid: %s", error)
            await asyncio.sleep(CHECK_EVERY_S)

    async def _fulfil(self, request: ProfileRequest) -> None:
        await self._queue.answer_profile(request, {"state": "taken"})
        log.info("a profile of %d steps is taken", request.steps)
        try:
            answer = await self._take(request)
        except Unreadable as error:
            log.warning("the profile failed: %s", error)
            answer = {"state": "failed", "reason": str(error)}
        except Exception as error:
            log.exception("the profile failed")
            answer = {"state": "failed", "reason": f"{type(error).__name__}; see the pool's log"}
        await self._queue.answer_profile(request, answer)
        await self._queue.drop_profile(self._pool, request)

    async def _take(self, request: ProfileRequest) -> dict[str, Any]:
        if not await self._runs_within(request.wait_s):
            return {"state": "idle"}
        with TemporaryDirectory(prefix="profile-") as folder:
            await self._record(Path(folder), request)
            report = await read_in_subprocess(Path(folder), request.steps)
            if report is None:
                return {"state": "idle"}
            files = await self._store_raw(Path(folder), request) if request.raw else {}
        metrics.profiled(self._engine.pipeline.spec.name, report["share"])
        return {"state": "done", "report": {**self._facts(), **report}, "files": files}

    def _facts(self) -> dict[str, Any]:
        name, place = self._engine.pipeline.spec.name, self._engine.place
        facts = {"layout": place.layout, "slice_devices": place.devices}
        return {"pool": self._pool, "model": name, **facts}

    async def _runs_within(self, seconds: float) -> bool:
        return await self._until(lambda: self._engine.step_loop.load > 0, seconds)

    async def _record(self, folder: Path, request: ProfileRequest) -> None:
        step_loop = self._engine.step_loop
        await asyncio.to_thread(jax.profiler.start_trace, str(folder), profiler_options=options())
        try:
            enough = step_loop.settled + min(request.steps, MAX_STEPS) + AROUND
            await self._until(lambda: step_loop.settled >= enough, min(request.seconds, MAX_S))
        finally:
            await asyncio.shield(asyncio.to_thread(jax.profiler.stop_trace))

    async def _until(self, condition: Any, seconds: float) -> bool:
        """Poll until a condition holds; return False after a timeout. Spares the step loop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not condition():
            if loop.time() >= until:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _store_raw(self, folder: Path, request: ProfileRequest) -> dict[str, str]:
        """Store a profile recording's files; return their keys by ending. Raises: StoreError."""
        from workers.profiling.trace import find

        keys = {ending: f"profiles/{request.id}/{self._pool}{ending}" for ending in FILES}
        for ending, key in keys.items():
            data = await asyncio.to_thread(find(folder, ending).read_bytes)
            await self._store.put(key, data, "application/octet-stream")
        task = asyncio.create_task(self._forget(f"profiles/{request.id}/"))
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
        return keys

    async def _forget(self, folder: str) -> None:
        """Delete a profile recording after a while, in case the client did not."""
        await asyncio.sleep(RETENTION_S)
        try:
            await self._store.delete([folder])
        except StoreError as error:
            log.warning("a recording remains in %s: %s", folder, error)


def options() -> jax.profiler.ProfileOptions:
    """Return profiler options: devices and the step loop's marks, but no slow Python calls."""
    chosen = jax.profiler.ProfileOptions()
    chosen.python_tracer_level = 0
    chosen.host_tracer_level = 2  # CPU operations are host events
    chosen.enable_hlo_proto = False
    return chosen


async def read_in_subprocess(folder: Path, steps: int) -> dict[str, Any] | None:
    """Read a profile recording in a child process; None: too few steps.

    Raises: Unreadable.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", f"{__package__}.trace"),
        str(folder),
        str(steps),
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(IMPORT_ROOT),
        },  # the worker holds the accelerator
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    try:
        async with asyncio.timeout(READ_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise Unreadable(f"{READ_S:.0f} s were not enough to read it; take fewer --steps") from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        log.warning("a recording cannot be read:\n%s", errors.decode())
        raise Unreadable("it cannot be read (see the pool's log); fewer --steps may do")
    report = json.loads(output)
    return None if report is None else dict(report)
