"""Trace spans of a job: its time in the queue, and each attempt by a worker.

All are children of the span of the request. An attempt's span id is derived from its claim. If the
worker crashes, the front end that reclaims the job reports the attempt's span in its place. The
spans that the worker has already reported are its children.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.trace import Span, SpanKind

from service.jobs.claim_reports import Claim
from service.jobs.model import gen_ai
from service.jobs.model.job import Job
from service.tracing import spans
from service.tracing.spans import Attributes

QUEUE, ATTEMPT, STOP = "queue", "attempt", "stop"
OUTCOME = "atelier.outcome"
LOST, EXPIRED = "lost", "expired"


def job_attributes(job: Job) -> Attributes:
    """Return the attributes common to all spans of a job; of its request only sizes and seed.

    `gen_ai.` attributes follow OpenTelemetry's conventions for generative AI where they define a
    name.
    """
    return {
        **gen_ai.attributes(job),
        "atelier.job.id": job.id,
        "atelier.tenant": job.tenant,
        "atelier.bucket": job.bucket,
        "atelier.checkpoint": job.fingerprint,
        "atelier.steps": job.steps,
    }


def report_wait(claim: Claim) -> None:
    """Report a claimed job's time in the queue, by Redis's clock, since it was last queued."""
    job = claim.job
    since = claim.queued_at or job.created_at
    attributes = {
        **job_attributes(job),
        "atelier.attempt": job.attempts,
        "atelier.pool": job.pool or "",
    }
    _report(QUEUE, attributes, job.traceparent, since, job.started_at)


def attempt(claim: Claim) -> AbstractContextManager[Span]:
    """Begin the span of a worker's claim of a job."""
    job = claim.job
    attributes = {
        **job_attributes(job),
        "atelier.attempt": job.attempts,
        "atelier.fence": claim.fence,
        "atelier.pool": job.pool or "",
        "atelier.steps.before": job.step,
    }
    span = spans.begin(
        ATTEMPT,
        attributes,
        parent=spans.parse(job.traceparent),
        kind=SpanKind.CONSUMER,
        identity=_identity(job.id, claim.fence),
    )
    for death in job.deaths:
        where: Attributes = {"atelier.pool": death.pool, "atelier.step": death.step}
        span.add_event("earlier worker crash", where)
    return spans.within(span)


def report_stop(job: Job, queued_at: float) -> None:
    """Report a span for a job that its client canceled or deleted.

    A waiting job gets a queue span. A running job gets a stop span, since the worker's own span
    says only that the job was dropped.
    """
    attributes = {**job_attributes(job), OUTCOME: job.state}
    if job.started_at is None:
        _report(QUEUE, attributes, job.traceparent, queued_at, job.finished_at)
    elif job.finished_at is not None:
        _report(STOP, attributes, job.traceparent, job.finished_at, job.finished_at)


def record_note(note: Mapping[str, Any]) -> None:
    """Report the span for a note of a script (`note` in transitions.lua).

    Notes record jobs that a script expired or reclaimed in addition to its main task. The reporting
    process stands in for a crashed worker, or for a worker that never claimed the job.
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
        _report(QUEUE, attributes, trace["parent"], since, until, failure=note["event"])
        return
    attributes |= {
        "atelier.attempt": int(trace["attempt"]),
        "atelier.fence": fence,
        "atelier.pool": trace["pool"],
    }
    if note["event"] == EXPIRED:  # its worker reports the attempt
        return _report(STOP, attributes, trace["parent"], until, until, failure=note["event"])
    identity = _identity(trace["id"], fence)
    _report(ATTEMPT, attributes, trace["parent"], since, until, failure=LOST, identity=identity)


def _report(
    name: str,
    attributes: Attributes,
    parent: str | None,
    since: float,
    until: float | None,
    failure: str | None = None,
    identity: str | None = None,
) -> None:
    """Report a span that is already over, unless the job came without a trace."""
    parent_span = spans.parse(parent)
    if parent_span is None:
        return
    span = spans.begin(
        name, attributes, parent=parent_span, kind=SpanKind.CONSUMER, at=since, identity=identity
    )
    if failure:
        spans.fail(span, failure)
    span.end(spans.nanoseconds(until))


def _identity(job_id: str, fence: int) -> str:
    return f"{job_id} {fence}"
