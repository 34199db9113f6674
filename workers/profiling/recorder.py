"""Profiler: records what a running pool does when somebody asks for it in Redis.

The pool goes on meanwhile. What is recorded is read in a process of its own, at low priority.
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

from service.jobs.profiles import MOST_S, MOST_STEPS, ProfileRequest
from service.jobs.queue import Queue
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from service.settings.installation import IMPORT_ROOT
from workers import metrics
from workers.engine.engine import Engine
from workers.engine.step_metrics import layout_name
from workers.retry import QUEUE_ERRORS

LOOK_EVERY_S = 1.0
"""Interval of looking for requests; a look costs Redis less than a heartbeat."""
POLL_S = 0.02
READ_S = 100.0
"""Time limit for reading a recording; whoever asked waits a little longer."""
AROUND = 2
"""Steps beyond those that are wanted: the first one that is recorded has begun before."""
KEPT_S = 300.0
"""Lifetime of a recording in the store."""
NICENESS = 10
FILES = (".xplane.pb", ".trace.json.gz")

log = logging.getLogger(__name__)


class Unreadable(Exception):
    """Error of a recording that cannot be read; says why, and what to do."""


class Profiler:
    """Profiler of one pool."""

    def __init__(self, pool: str, engine: Engine, queue: Queue, store: Store) -> None:
        self._pool = pool
        self._engine = engine
        self._queue = queue
        self._store = store
        self._cleanups: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer requests one after the other, until canceled."""
        while True:
            try:
                if request := await self._queue.wanted_profile(self._pool):
                    await self._fulfil(request)
            except QUEUE_ERRORS as error:
                log.info("cannot see now whether a profile is wanted: %s", error)
            except (TypeError, ValueError) as error:  # of another version's command
                log.warning("what is asked of the profiler cannot be understood: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)

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
            report = await read_elsewhere(Path(folder), request.steps)
            if report is None:
                return {"state": "idle"}
            files = await self._keep(Path(folder), request) if request.raw else {}
        metrics.profiled(self._engine.pipeline.spec.name, report["share"])
        return {"state": "done", "report": {**self._facts(), **report}, "files": files}

    def _facts(self) -> dict[str, Any]:
        name, layout = self._engine.pipeline.spec.name, self._engine.layout
        slice_devices = layout.mesh.devices.size
        facts = {"layout": layout_name(layout), "slice_devices": slice_devices}
        return {"pool": self._pool, "model": name, **facts}

    async def _runs_within(self, seconds: float) -> bool:
        return await self._until(lambda: self._engine.step_loop.load > 0, seconds)

    async def _record(self, folder: Path, request: ProfileRequest) -> None:
        step_loop = self._engine.step_loop
        await asyncio.to_thread(jax.profiler.start_trace, str(folder), profiler_options=options())
        try:
            enough = step_loop.settled + min(request.steps, MOST_STEPS) + AROUND
            await self._until(lambda: step_loop.settled >= enough, min(request.seconds, MOST_S))
        finally:
            await asyncio.shield(asyncio.to_thread(jax.profiler.stop_trace))

    async def _until(self, condition: Any, seconds: float) -> bool:
        """Return whether it came in that time. Polls: the step loop has better things to do."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not condition():
            if loop.time() >= until:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _keep(self, folder: Path, request: ProfileRequest) -> dict[str, str]:
        """The recording's files by their endings: their keys in the store. Raises: StoreError."""
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
        """Delete a recording that nobody has fetched: whoever asked does so, unless it died."""
        await asyncio.sleep(KEPT_S)
        try:
            await self._store.delete([folder])
        except StoreError as error:
            log.warning("a recording is left in %s: %s", folder, error)


def options() -> jax.profiler.ProfileOptions:
    """Devices and the step_loop's marks; no calls of Python, which would slow the pool down."""
    chosen = jax.profiler.ProfileOptions()
    chosen.python_tracer_level = 0
    chosen.host_tracer_level = 2  # of a CPU, its operations are the host's
    chosen.enable_hlo_proto = False
    return chosen


async def read_elsewhere(folder: Path, steps: int) -> dict[str, Any] | None:
    """The report on a recording; None: there are too few steps in it.

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
        },  # the chip is taken
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    try:
        async with asyncio.timeout(READ_S):
            said, complaint = await process.communicate()
    except TimeoutError:
        raise Unreadable(f"{READ_S:.0f} s were not enough to read it; take fewer --steps") from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        log.warning("a recording cannot be read:\n%s", complaint.decode())
        raise Unreadable("it cannot be read (see the pool's log); fewer --steps may do")
    found = json.loads(said)
    return None if found is None else dict(found)
