"""Runner of a batch's lines: create a line's job, wait for it, and build its result."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from service.admission.admit import admit
from service.admission.parse import Caller
from service.admission.refusals import counting_refusals
from service.batches.endpoint import BatchEndpoint
from service.batches.lines import BatchLine
from service.batches.results import Result
from service.errors.problems import BodyTooLarge, Busy, Gone, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.batch import Batch
from service.jobs.model.job import Job
from service.responses.render import problem_without_output

LONGEST_PAUSE_S = 30.0
"""Maximum wait before a line that was rejected as busy is retried, regardless of `Retry-After`."""

T = TypeVar("T")


async def _run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end: a batch has no connection that could break."""
    return await work


class BatchStopping(Exception):
    """The batch is stopping, so no job is created."""


class LineRunner:
    """Runner of a batch's lines: creates their jobs, and builds their results."""

    def __init__(self, front: FrontEnd, batch: Batch, endpoint: BatchEndpoint) -> None:
        self._front = front
        self._batch = batch
        self._endpoint = endpoint
        self.stopping = asyncio.Event()
        """Set when no more jobs may be created."""

    async def admit(self, number: int, line: BatchLine) -> Job:
        """Create the job of a batch's line, or return the existing one.

        Waits while the queue, a quota or the safety hook is at capacity.

        Raises:
            Problem: the line is rejected permanently.
            BatchStopping: the batch stops before the line has a job.
        """
        batch, tenant = self._batch, self._batch.tenant
        caller = Caller(
            tenant, tenant, _run_to_end, key_id=batch.key_id, request_id=batch.request_id
        )
        headers = {"idempotency-key": f"{batch.id}/{number}"}
        while True:
            try:
                async with counting_refusals(self._front, tenant) as attempt:
                    attempt.record_model(line.body.get("model"))
                    async with self._endpoint.request(self._front, line.body) as request:
                        low_priority = request.model_copy(update={"priority": "low"})
                        warnings = await self._endpoint.warnings(self._front, line.body)
                        sender = replace(caller, warnings=tuple(warnings))
                        return (await admit(self._front, sender, low_priority, headers)).job
            except Busy as busy:
                await self._pause(float(busy.headers["Retry-After"]))

    async def _pause(self, seconds: float) -> None:
        """Wait before retrying a batch line. Raises: BatchStopping."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, LONGEST_PAUSE_S)):
                await self.stopping.wait()
                raise BatchStopping

    async def wait_until_ended(self, job_id: str) -> Job | None:
        """Wait until a job has ended and return it; None: it was deleted."""
        return await self._front.queue.ended(job_id)

    async def answer(self, line: BatchLine, job: Job | None) -> Result:
        """Build the result of a batch line whose job has ended."""
        if job is None or not job.state.is_done:
            return self.problem(line, problem_without_output(job) if job else _deleted(), job)
        try:
            body = await self._endpoint.answer(self._front, job, line.body)
        except Problem as problem:
            return self.problem(line, problem, job)
        return Result(line.custom_id, 200, body, job.id)

    def problem(self, line: BatchLine, problem: Problem, job: Job | None = None) -> Result:
        """Build the result of a batch line that failed with a problem."""
        request_id = job.id if job else self._batch.id
        status, body = self._endpoint.status(problem), self._endpoint.error(problem)
        return Result(line.custom_id, status, body, request_id)

    def too_large(self, result: Result, reason: str) -> Result:
        """Build the error result of a batch line whose result exceeds a size limit."""
        problem = BodyTooLarge(f"{reason}; fetch the images from its job", code="results_too_large")
        body = self._endpoint.error(problem)
        return replace(result, status=BodyTooLarge.status, body=body)


def _deleted() -> Gone:
    return Gone("the job was deleted before its result was read", code="job_gone")
