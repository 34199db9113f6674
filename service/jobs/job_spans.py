"""A job's spans: in the queue, and in the hands of one pool after the other.

All are below the request that the job came with. An attempt's span has an id that follows from the
claim: where the pool dies, the front end that takes the job back tells of the attempt in its place,
and what the pool had told of before is below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from service.jobs.consumer import Claim
from service.jobs.model import gen_ai
from service.jobs.model.job import Job
from service.tracing import spans
from service.tracing.span import Attributes, Span

QUEUE, ATTEMPT, STOP = "queue", "attempt", "stop"
OUTCOME = "atelier.outcome"
LOST, EXPIRED = "lost", "expired"


def about(job: Job) -> Attributes:
    """Return the attributes common to all spans of a job; of its request only sizes and seed.

    `gen_ai.` by OpenTelemetry's conventions for generative AI, where they have a name for it.
    """
    return {
        **gen_ai.attributes(job),
        "atelier.job.id": job.id,
        "atelier.tenant": job.tenant,
        "atelier.bucket": job.bucket,
        "atelier.steps": job.steps,
    }


def waited(claim: Claim) -> None:
    """The job was claimed: by Redis's clock, from when it came (back) to the queue."""
    job = claim.job
    since = claim.queued_at or job.created_at
    attributes = {**about(job), "atelier.attempt": job.attempts, "atelier.pool": job.pool or ""}
    _tell(QUEUE, attributes, job.traceparent, since, job.started_at)


def attempt(claim: Claim) -> AbstractContextManager[Span]:
    """Begin the span of one claim in a pool."""
    job = claim.job
    attributes = {
        **about(job),
        "atelier.attempt": job.attempts,
        "atelier.fence": claim.fence,
        "atelier.pool": job.pool or "",
        "atelier.steps.before": job.step,
    }
    one = spans.begin(
        ATTEMPT,
        attributes,
        parent=spans.parse(job.traceparent),
        kind="consumer",
        identity=_identity(job.id, claim.fence),
    )
    for death in job.deaths:
        one.event("pool died before", {"atelier.pool": death.pool, "atelier.step": death.step})
    return spans.within(one)


def stopped(job: Job, queued_at: float) -> None:
    """Record the end of a job that its client ended.

    In the queue, or while a pool is at it, whose own span says only that it was dropped.
    """
    attributes = {**about(job), OUTCOME: job.state}
    if job.started_at is None:
        _tell(QUEUE, attributes, job.traceparent, queued_at, job.finished_at)
    elif job.finished_at is not None:
        _tell(STOP, attributes, job.traceparent, job.finished_at, job.finished_at)


def record_note(note: Mapping[str, Any]) -> None:
    """Record what a script did beside its caller's errand, and to whom.

    In the place of a pool that cannot any more, or of jobs that no pool ever had (`note` in
    life.lua).
    """
    trace = note.get("trace")
    if trace is None:
        return
    attributes = {
        **gen_ai.SERVICE,
        gen_ai.REQUEST_MODEL: note.get("served_as", note["model"]),
        gen_ai.RESPONSE_MODEL: note["model"],
        "atelier.job.id": trace["id"],
        "atelier.tenant": trace.get("tenant", ""),
        OUTCOME: note["event"],
    }
    fence, since = int(trace.get("fence") or 0), float(trace["since"])
    until = float(trace["till"])
    if not trace["claimed"]:
        _tell(QUEUE, attributes, trace["parent"], since, until, failure=note["event"])
        return
    attributes |= {
        "atelier.attempt": int(trace["attempt"]),
        "atelier.fence": fence,
        "atelier.pool": trace["pool"],
    }
    if note["event"] == EXPIRED:  # its pool tells of the attempt itself
        return _tell(STOP, attributes, trace["parent"], until, until, failure=note["event"])
    own = _identity(trace["id"], fence)
    _tell(ATTEMPT, attributes, trace["parent"], since, until, failure=LOST, identity=own)


def _tell(
    name: str,
    attributes: Attributes,
    parent: str | None,
    since: float,
    until: float | None,
    failure: str | None = None,
    identity: str | None = None,
) -> None:
    """A span that is over already; of a job that came without a trace there is none."""
    above = spans.parse(parent)
    if above is None:
        return
    one = spans.begin(name, attributes, parent=above, kind="consumer", at=since, identity=identity)
    if failure:
        one.fail(failure)
    one.end(until)


def _identity(job_id: str, fence: int) -> str:
    return f"{job_id} {fence}"
