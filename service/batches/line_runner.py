"""One line of a batch: its job, and what is answered about it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from service.admission.admission import admit
from service.admission.caller import Caller
from service.admission.refusals import counting_refusals
from service.batches.endpoint import BatchEndpoint
from service.batches.lines import BatchLine
from service.batches.results import Result
from service.errors.problems import BodyTooLarge, Busy, Gone, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.batch import Batch
from service.jobs.model.job import Job
from service.responses.render import without_output

LONGEST_PAUSE_S = 30.0
"""Longest wait before a line that was refused for now is tried again, whatever it was told."""

T = TypeVar("T")


async def _always(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end: a batch has no connection that could break."""
    return await work


class Stopped(Exception):
    """The batch is to end."""


class LineRunner:
    """Runs the lines of one batch."""

    def __init__(self, front: FrontEnd, batch: Batch, endpoint: BatchEndpoint) -> None:
        self._front = front
        self._batch = batch
        self._endpoint = endpoint
        self.stopping = asyncio.Event()
        """Set when no further job is to be made."""

    async def admit(self, number: int, line: BatchLine) -> Job:
        """Return the line's job: the same one however often it is asked for.

        Waits for as long as the queue, a quota or the safety hook has no room.

        Raises:
            Problem: it is refused for good.
            Stopped: it has no job yet, and is to get none any more.
        """
        batch, tenant = self._batch, self._batch.tenant
        sender = Caller(tenant, tenant, _always, key_id=batch.key_id, request_id=batch.request_id)
        headers = {"idempotency-key": f"{batch.id}/{number}"}
        while True:
            try:
                async with counting_refusals(self._front, tenant) as attempt:
                    attempt.names(line.body.get("model"))
                    async with self._endpoint.request(self._front, line.body) as request:
                        low = request.model_copy(update={"priority": "low"})
                        return (await admit(self._front, sender, low, headers)).job
            except Busy as busy:
                await self._pause(float(busy.headers["Retry-After"]))

    async def _pause(self, seconds: float) -> None:
        """Raises: Stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, LONGEST_PAUSE_S)):
                await self.stopping.wait()
                raise Stopped

    async def ended(self, job_id: str) -> Job | None:
        """Return a job once it has ended; None: it was deleted."""
        return await self._front.queue.ended(job_id)

    async def answer(self, line: BatchLine, job: Job | None) -> Result:
        """Return the answer about an ended job."""
        if job is None or not job.state.is_done:
            return self.problem(line, without_output(job) if job else _deleted(), job)
        try:
            body = await self._endpoint.answer(self._front, job, line.body)
        except Problem as problem:
            return self.problem(line, problem, job)
        return Result(line.custom_id, 200, body, job.id)

    def problem(self, line: BatchLine, problem: Problem, job: Job | None = None) -> Result:
        """Return the answer about a problem."""
        request_id = job.id if job else self._batch.id
        status, body = self._endpoint.status(problem), self._endpoint.error(problem)
        return Result(line.custom_id, status, body, request_id)

    def too_large(self, result: Result, reason: str) -> Result:
        """Return the answer in place of one for which there is no room."""
        problem = BodyTooLarge(f"{reason}; its job has the images", code="results_too_large")
        body = self._endpoint.error(problem)
        return replace(result, status=BodyTooLarge.status, body=body)


def _deleted() -> Gone:
    return Gone("the job was deleted before it was asked about", code="job_gone")
