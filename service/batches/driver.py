"""Driver that runs one batch under its lease and can be stopped at any line.

All progress is stored: each line's job and outcome in Redis, its result in the object store. The
idempotency key of a line's job contains batch and line, so that all drivers share one job. A line's
end is counted once.
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
    LineRange,
    chunks_of,
    read_line,
)
from service.batches.results import JSONL, Result, line_id, unfinished_line, write_results
from service.errors.problems import Problem
from service.front_end.front_end import FrontEnd
from service.jobs.batches import ENDS, KeepBatch, RecordLine
from service.jobs.model.batch import Batch, BatchState, LineError
from service.jobs.redis.tasks import cancel
from service.jobs.storage.errors import NotStored
from service.jobs.storage.object_store import file_key, result_key

T = TypeVar("T")


class BatchLeaseLost(Exception):
    """The lease has expired: another front end drives the batch."""


class BatchDriver:
    """Driver of one batch, which runs its lines as jobs.

    Args:
        holder: this driver's name in the lease.
    """

    def __init__(self, front: FrontEnd, batch: Batch, holder: str, endpoint: BatchEndpoint) -> None:
        self._front = front
        self._queue = front.queue
        self._batch = batch
        self._holder = holder
        self._endpoint = endpoint
        self._runner = LineRunner(front, batch, endpoint)
        self._key = file_key(batch.input_file_id)
        self._stored_bytes = 0
        """Total size of the results that this driver has stored."""
        self._storing = asyncio.Lock()
        """Held from the check of the limits until a result counts."""
        self._writing: set[asyncio.Task[Any]] = set()
        """Tasks that create jobs or record ends, and must not be cancelled."""

    async def run(self) -> None:
        """Run the batch's lines to their end.

        Raises:
            BatchLeaseLost: another front end has the lease.
            RedisError, OSError, StoreError: a driver has to resume the batch later.
        """
        try:
            places = await self._validate()
        except BatchError as error:
            errors = json.dumps([line_error.model_dump() for line_error in error.errors])
            await self._move(BatchState.FAILED, errors=errors)
            return
        state = await self._move(BatchState.IN_PROGRESS, total=len(places))
        if state is BatchState.IN_PROGRESS:
            state = await self._work(places)
        await self._finish(places, state)

    async def _validate(self) -> list[LineRange]:
        """Check all lines of the input file and return their byte ranges. Raises: BatchError."""
        file = await self._queue.file(self._batch.input_file_id, self._batch.tenant)
        models = self._front.models
        check_model = models.check if await models.latest() else None
        check = LineCheck(self._endpoint, self._front.settings.batches, check_model)
        try:
            return await self._with_lease(
                check.run(chunks_of(self._front.store, self._key, file.bytes if file else 0))
            )
        except NotStored:
            message = "the file no longer exists"
            raise BatchError([LineError(code="file_gone", message=message)]) from None

    async def _work(self, ranges: list[LineRange]) -> BatchState:
        """Run the batch's lines that have not ended, until all have or the batch must stop.

        Returns: IN_PROGRESS if all lines ended, otherwise the state that stopped the batch.
        """
        outcomes = await self._queue.lines(self._batch.id)
        remaining = [number for number in range(len(ranges)) if outcomes.get(number) not in ENDS]
        window = asyncio.Semaphore(await self._window())

        async def run_line(number: int) -> None:
            async with window:
                await self._line(number, ranges[number], outcomes.get(number))

        async def all_lines() -> None:
            async with asyncio.TaskGroup() as group:
                for number in remaining:
                    group.create_task(run_line(number))

        working, renewing = (
            asyncio.create_task(all_lines()),
            asyncio.create_task(self._keep_lease()),
        )
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
            return BatchState.IN_PROGRESS if _is_done(working) else renewing.result()
        finally:
            await cancel(working, renewing)
            self._runner.stopping.set()  # writes in progress must be recorded
            await asyncio.gather(*self._writing, return_exceptions=True)

    async def _window(self) -> int:
        max_queued = (await self._front.tenants.of(self._batch.tenant)).max_queued
        window = self._front.settings.batches.window
        return window if max_queued is None else max(1, min(window, max_queued // 2))

    async def _line(self, number: int, byte_range: LineRange, job_id: str | None) -> None:
        line = await read_line(self._front.store, self._key, byte_range)
        result = await self._result(number, line, job_id)
        await self._shielded(self._store_in_turn(number, result))

    async def _store_in_turn(self, number: int, result: Result) -> None:
        async with self._storing:
            await self._store_result(number, result)

    async def _store_result(self, number: int, result: Result) -> None:
        """Store a batch line's result and record its end. Raises: BatchLeaseLost, StoreError."""
        text = result.text(line_id(self._batch, number))
        max_bytes = self._front.settings.batches.max_result_bytes
        if self._stored_bytes + len(text) > max_bytes:
            result = self._runner.too_large(result, f"a batch's results may have {max_bytes} bytes")
        elif not await self._fits_quota(len(text)):
            result = self._runner.too_large(result, "the tenant's quota of stored bytes is used up")
        text = result.text(line_id(self._batch, number))
        self._stored_bytes += len(text)
        await self._front.store.put(result_key(self._batch.id, number), text, JSONL)
        outcome = "completed" if result.status == 200 else "failed"
        await self._record(number, outcome, len(text))

    async def _fits_quota(self, size: int) -> bool:
        """Return whether the tenant's quota of stored bytes allows `size` more bytes."""
        tenant = self._batch.tenant
        limits = await self._front.tenants.of(tenant)
        if limits.stored_bytes is None:
            return True
        standing = await self._queue.quota_usage(tenant, limits)
        return standing.stored_bytes + size <= limits.stored_bytes

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine to its end, even if the caller is cancelled; return its result."""
        writing = asyncio.create_task(work)
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        return await asyncio.shield(writing)

    async def _result(self, number: int, line: BatchLine, job_id: str | None) -> Result:
        if job_id is None:
            try:
                job_id = await self._shielded(self._begin(number, line))
            except Problem as problem:
                return self._runner.problem(line, problem)
        return await self._runner.answer(line, await self._runner.wait_until_ended(job_id))

    async def _begin(self, number: int, line: BatchLine) -> str:
        """Create a batch line's job and record it.

        Raises: Problem, BatchStopping, BatchLeaseLost.
        """
        job = await self._runner.admit(number, line)
        await self._record(number, job.id)
        return job.id

    async def _record(self, number: int, outcome: str, result_bytes: int = 0) -> None:
        """Record a batch line's job id or outcome in Redis. Raises: BatchLeaseLost."""
        record = RecordLine(self._batch.id, self._holder, number, outcome, result_bytes)
        if not await self._queue.run(record):
            raise BatchLeaseLost

    async def _keep_lease(self) -> BatchState:
        """Renew the batch's lease until the batch must stop; return CANCELLING or EXPIRED.

        Raises: BatchLeaseLost.
        """
        while True:
            state = await self._renew()
            if state is BatchState.CANCELLING:
                return state
            if time.time() >= self._batch.expires_at:
                return BatchState.EXPIRED
            await asyncio.sleep(self._front.settings.batches.poll_every_s)

    async def _renew(self) -> BatchState:
        """Renew the batch's lease once; return the batch's state. Raises: BatchLeaseLost."""
        lease_s = self._front.settings.batches.lease_s
        state = await self._queue.run(KeepBatch(self._batch.id, self._holder, lease_s))
        if state is None:
            raise BatchLeaseLost
        return state

    async def _with_lease(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine while renewing the lease; return its result. Raises: BatchLeaseLost."""

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

    async def _finish(self, ranges: list[LineRange], state: BatchState) -> None:
        """Write the result files and end the batch; its remaining jobs are canceled."""
        end = ENDINGS[state]
        if end is BatchState.COMPLETED:
            await self._move(BatchState.FINALIZING)
        await self._with_lease(self._end(ranges, end))

    async def _end(self, ranges: list[LineRange], end: BatchState) -> None:
        lines = await self._queue.lines(self._batch.id)
        for outcome in {*lines.values()} - ENDS:
            await self._queue.cancel(outcome)
        completed, failed = _completed_and_failed(lines)
        unfinished = [number for number in range(len(ranges)) if lines.get(number) not in ENDS]
        code = f"batch_{end}"
        error_lines = [
            unfinished_line(self._batch, n, ranges[n].custom_id, code) for n in unfinished
        ]
        files = {
            "output_file_id": await write_results(
                self._front, self._batch, completed, (), "output"
            ),
            "error_file_id": await write_results(
                self._front, self._batch, failed, error_lines, "error"
            ),
        }
        file_ids = {name: file_id for name, file_id in files.items() if file_id}
        await self._move(end, total=len(ranges), failed=len(failed) + len(unfinished), **file_ids)

    async def _move(self, state: BatchState, **fields: object) -> BatchState:
        """Set the batch's state; return the state it has now. Raises: BatchLeaseLost."""
        new_state = await self._queue.move_batch(self._batch.id, self._holder, state, **fields)
        if new_state is None:
            raise BatchLeaseLost
        return new_state


ENDINGS: Mapping[BatchState, BatchState] = {
    BatchState.IN_PROGRESS: BatchState.COMPLETED,
    BatchState.FINALIZING: BatchState.COMPLETED,
    BatchState.CANCELLING: BatchState.CANCELLED,
    BatchState.EXPIRED: BatchState.EXPIRED,
}
"""End state of a batch, by the state in which its work stopped."""


def _is_done(working: asyncio.Task[None]) -> bool:
    """Return whether all lines of a batch are done. Raises: the first failure of a line."""
    if not working.done():
        return False
    try:
        working.result()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return True


def _completed_and_failed(lines: Mapping[int, str]) -> tuple[list[int], list[int]]:
    """Return the numbers of a batch's completed and failed lines, each in order."""
    numbers = sorted(lines)
    completed = [number for number in numbers if lines[number] == "completed"]
    return completed, [number for number in numbers if lines[number] == "failed"]
