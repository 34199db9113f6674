"""Driver: works one batch off under its lease, and can be stopped at any line.

It keeps nothing that the next driver needs: each line's job and outcome lie in Redis, its result in
the store. A job is admitted under a key made of batch and line, so that it is made once whoever
asks; a line's end is counted once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from service.batches.endpoint import BatchEndpoint
from service.batches.line_runner import LineRunner
from service.batches.lines import (
    BatchError,
    BatchLine,
    LineCheck,
    LinePlace,
    chunks_of,
    read_line,
)
from service.batches.results import JSONL, Result, given_up, line_id, write_results
from service.errors.problems import Problem
from service.front_end.front_end import FrontEnd
from service.jobs.batches import ENDS
from service.jobs.model.batch import Batch, BatchState, LineError
from service.jobs.redis.tasks import cancel
from service.jobs.storage.errors import NotStored
from service.jobs.storage.object_store import file_key, result_key

T = TypeVar("T")


class BatchLost(Exception):
    """The lease is over: another front end drives the batch."""


class BatchDriver:
    """Driver of one batch.

    Args:
        holder: name of the lease.
    """

    def __init__(self, front: FrontEnd, batch: Batch, holder: str, endpoint: BatchEndpoint) -> None:
        self._front = front
        self._queue = front.queue
        self._batch = batch
        self._holder = holder
        self._endpoint = endpoint
        self._runner = LineRunner(front, batch, endpoint)
        self._key = file_key(batch.input_file_id)
        self._kept_bytes = 0
        """Size of the results that this driver has kept."""
        self._writing: set[asyncio.Task[Any]] = set()
        """Jobs that are being made, and ends that are being recorded."""

    async def run(self) -> None:
        """Work the batch off.

        Raises:
            BatchLost: another one does.
            RedisError, OSError, StoreError: somebody has to go on later.
        """
        try:
            places = await self._validated()
        except BatchError as error:
            errors = json.dumps([one.model_dump() for one in error.errors])
            await self._move(BatchState.FAILED, errors=errors)
            return
        state = await self._move(BatchState.IN_PROGRESS, total=len(places))
        if state is BatchState.IN_PROGRESS:
            state = await self._work(places)
        await self._finish(places, state)

    async def _validated(self) -> list[LinePlace]:
        """Raises: BatchError."""
        file = await self._queue.file(self._batch.input_file_id, self._batch.tenant)
        models = self._front.models
        check_model = models.check if await models.latest() else None
        check = LineCheck(self._endpoint, self._front.settings.batches, check_model)
        try:
            return await self._beside_lease(
                check.run(chunks_of(self._front.store, self._key, file.bytes if file else 0))
            )
        except NotStored:
            said = "the file is no longer there"
            raise BatchError([LineError(code="file_gone", message=said)]) from None

    async def _work(self, places: list[LinePlace]) -> BatchState:
        """Run the lines that have not ended; return in which state that ended.

        That is in_progress where all are done.
        """
        known = await self._queue.lines(self._batch.id)
        left = [number for number in range(len(places)) if known.get(number) not in ENDS]
        window = asyncio.Semaphore(await self._window())

        async def one(number: int) -> None:
            async with window:
                await self._line(number, places[number], known.get(number))

        async def all_lines() -> None:
            async with asyncio.TaskGroup() as group:
                for number in left:
                    group.create_task(one(number))

        working, keeping = asyncio.create_task(all_lines()), asyncio.create_task(self._keep())
        try:
            await asyncio.wait((working, keeping), return_when=asyncio.FIRST_COMPLETED)
            return BatchState.IN_PROGRESS if _is_done(working) else keeping.result()
        finally:
            await cancel(working, keeping)
            self._runner.stopping.set()  # what is just being written must become known
            await asyncio.gather(*self._writing, return_exceptions=True)

    async def _window(self) -> int:
        most = (await self._front.tenants.of(self._batch.tenant)).max_queued
        window = self._front.settings.batches.window
        return window if most is None else max(1, min(window, most // 2))

    async def _line(self, number: int, place: LinePlace, job_id: str | None) -> None:
        line = await read_line(self._front.store, self._key, place)
        result = await self._result(number, line, job_id)
        await self._to_the_end(self._keep_result(number, result))

    async def _keep_result(self, number: int, result: Result) -> None:
        """Raises: BatchLost, StoreError."""
        text = result.text(line_id(self._batch, number))
        most = self._front.settings.batches.max_result_bytes
        if self._kept_bytes + len(text) > most:
            result = self._runner.too_large(result, f"a batch's results may have {most} bytes")
        elif not await self._has_room(len(text)):
            result = self._runner.too_large(result, "the tenant's quota of stored bytes is used up")
        text = result.text(line_id(self._batch, number))
        self._kept_bytes += len(text)
        await self._front.store.put(result_key(self._batch.id, number), text, JSONL)
        outcome = "completed" if result.status == 200 else "failed"
        await self._record(number, outcome, len(text))

    async def _has_room(self, size: int) -> bool:
        """Return whether the tenant may have so many bytes more."""
        tenant = self._batch.tenant
        limits = await self._front.tenants.of(tenant)
        if limits.stored_bytes is None:
            return True
        standing = await self._queue.standing(tenant, limits)
        return standing.stored_bytes + size <= limits.stored_bytes

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what work gives; whoever stops waiting for it, it goes on."""
        writing = asyncio.create_task(work)
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        return await asyncio.shield(writing)

    async def _result(self, number: int, line: BatchLine, job_id: str | None) -> Result:
        if job_id is None:
            try:
                job_id = await self._to_the_end(self._begin(number, line))
            except Problem as problem:
                return self._runner.problem(line, problem)
        return await self._runner.answer(line, await self._runner.ended(job_id))

    async def _begin(self, number: int, line: BatchLine) -> str:
        """Make a line's job and record it. Raises: Problem, Stopped, BatchLost."""
        job = await self._runner.admit(number, line)
        await self._record(number, job.id)
        return job.id

    async def _record(self, number: int, outcome: str, result_bytes: int = 0) -> None:
        """Raises: BatchLost."""
        batch, holder = self._batch.id, self._holder
        if not await self._queue.record_line(batch, holder, number, outcome, result_bytes):
            raise BatchLost

    async def _keep(self) -> BatchState:
        """Renew the lease until the batch is to end; return the state for which.

        Raises: BatchLost.
        """
        while True:
            state = await self._renew()
            if state is BatchState.CANCELLING:
                return state
            if time.time() >= self._batch.expires_at:
                return BatchState.EXPIRED
            await asyncio.sleep(self._front.settings.batches.poll_every_s)

    async def _renew(self) -> BatchState:
        """Raises: BatchLost."""
        lease_s = self._front.settings.batches.lease_s
        state = await self._queue.keep_batch(self._batch.id, self._holder, lease_s)
        if state is None:
            raise BatchLost
        return state

    async def _beside_lease(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what work gives, with the lease renewed meanwhile. Raises: BatchLost."""

        async def renew() -> None:
            while True:
                await self._renew()
                await asyncio.sleep(self._front.settings.batches.poll_every_s)

        working, renewing = asyncio.create_task(work), asyncio.create_task(renew())
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                renewing.result()
            return working.result()
        finally:
            await cancel(working, renewing)

    async def _finish(self, places: list[LinePlace], state: BatchState) -> None:
        """Stop what still runs, write the files, and end the batch."""
        end = ENDINGS[state]
        if end is BatchState.COMPLETED:
            await self._move(BatchState.FINALIZING)
        await self._beside_lease(self._end(places, end))

    async def _end(self, places: list[LinePlace], end: BatchState) -> None:
        lines = await self._queue.lines(self._batch.id)
        for outcome in {*lines.values()} - ENDS:
            await self._queue.cancel(outcome)
        done, failed = _by_outcome(lines)
        left = [number for number in range(len(places)) if lines.get(number) not in ENDS]
        code = f"batch_{end}"
        more = [given_up(self._batch, n, places[n].custom_id, code) for n in left]
        files = {
            "output_file_id": await write_results(self._front, self._batch, done, (), "output"),
            "error_file_id": await write_results(self._front, self._batch, failed, more, "error"),
        }
        known = {name: file_id for name, file_id in files.items() if file_id}
        await self._move(end, total=len(places), failed=len(failed) + len(left), **known)

    async def _move(self, state: BatchState, **fields: object) -> BatchState:
        """Move the batch; return the state that it is in. Raises: BatchLost."""
        found = await self._queue.move_batch(self._batch.id, self._holder, state, **fields)
        if found is None:
            raise BatchLost
        return found


ENDINGS: Mapping[BatchState, BatchState] = {
    BatchState.IN_PROGRESS: BatchState.COMPLETED,
    BatchState.FINALIZING: BatchState.COMPLETED,
    BatchState.CANCELLING: BatchState.CANCELLED,
    BatchState.EXPIRED: BatchState.EXPIRED,
}
"""End state by how the work ended."""


def _is_done(working: asyncio.Task[None]) -> bool:
    """Raises: the first failure of a line."""
    if not working.done():
        return False
    try:
        working.result()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return True


def _by_outcome(lines: Mapping[int, str]) -> tuple[list[int], list[int]]:
    """Numbers of completed and of failed lines, in their order."""
    numbers = sorted(lines)
    done = [number for number in numbers if lines[number] == "completed"]
    return done, [number for number in numbers if lines[number] == "failed"]
