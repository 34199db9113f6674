"""Spans of a job that the queue records for workers, from a real queue to a real collector."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from service.jobs import job_spans
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.settings.telemetry import TracingSettings
from service.tracing import spans
from tests.collector import Collector, Span, collecting
from tests.service.eventually import eventually
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import MODEL, a_job

TRACE, ABOVE = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{ABOVE}-01"
CLOCKS_S = 0.005
"""Difference between the clocks of Redis and Python on one machine."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with (
        collecting() as collector,
        spans.exporting(TracingSettings(endpoint=collector.url), "atelier-test"),
    ):
        yield collector


async def spans_of_job(collector: Collector, job_id: str, count: int) -> list[Span]:
    """Wait for `count` spans of a job, and return them in order of start."""

    async def are_there() -> bool:
        return len(collector.of_job(job_id)) >= count

    spans.flush()
    await eventually(are_there)
    result = collector.of_job(job_id)
    assert len(result) == count
    assert {(span.trace, span.parent) for span in result} == {(TRACE, ABOVE)}
    return result


async def test_reaper_records_the_span_of_a_lost_attempt(
    hasty: Queue, collector: Collector
) -> None:
    """The reaper records a lost attempt under the id that the worker's own span would have had."""
    job, _ = await hasty.put(a_job(traceparent=PARENT))
    ids = []
    for _ in range(2):
        (claim,) = await hasty.claim("p", job.model, 1)
        with job_spans.attempt(claim) as context:
            ids.append(spans.log_ids(context)["span_id"])
            await hasty.reap()
        job_spans.report_wait(claim)
    assert (await hasty.get(job.id)).state == "failed"
    recorded = await spans_of_job(collector, job.id, 6)
    queued = [span for span in recorded if span.name == "queue"]
    lost = [span for span in recorded if span.error == "lost"]
    assert [span.id for span in lost] == ids and len({*ids}) == 2
    assert [span.attributes["atelier.attempt"] for span in queued] == [1, 2]
    assert [span.attributes["atelier.attempt"] for span in lost] == [1, 2]
    for wait, attempt in zip(queued, lost, strict=True):
        assert wait.end == pytest.approx(attempt.start, abs=CLOCKS_S)
    assert queued[1].start == pytest.approx(lost[0].end, abs=CLOCKS_S)


async def test_jobs_that_end_in_the_queue_have_spans(
    connect: Connect, collector: Collector
) -> None:
    queue = await connect()
    late, _ = await queue.put(a_job(traceparent=PARENT, deadline_at=time.time() + 0.01))
    canceled, _ = await queue.put(a_job(traceparent=PARENT))
    await queue.cancel(canceled.id)
    await queue.cancel(canceled.id)

    async def has_expired() -> bool:
        await queue.reap()
        return (await queue.get(late.id)).state == "expired"

    await eventually(has_expired)
    (span,) = (
        candidate for candidate in await spans_of_job(collector, late.id, 2) if candidate.error
    )
    assert (span.name, span.error, span.attributes["atelier.outcome"]) == (
        "queue",
        "expired",
        "expired",
    )
    (span,) = (candidate for candidate in collector.of_job(canceled.id) if not candidate.error)
    assert (span.name, span.attributes["atelier.job.id"]) == ("queue", canceled.id)
    assert span.attributes["atelier.outcome"] == "canceled"


async def test_jobs_that_end_while_running_have_spans(
    queue: Queue, empty_redis: Redis, collector: Collector
) -> None:
    """The worker itself reports only that the job was dropped."""
    for _ in range(2):
        await queue.put(a_job(traceparent=PARENT, deadline_at=time.time() + 1000))
    canceled, late = (claim.job.id for claim in await queue.claim("p", MODEL, 2))
    await queue.cancel(canceled)
    await empty_redis.hset(keys.job(late), "deadline_at", 1)
    await empty_redis.zadd(keys.PREFIX + "deadlines", {late: 1})
    await queue.reap()
    for job_id, state, error in ((canceled, "canceled", None), (late, "expired", "expired")):
        (span,) = [span for span in await spans_of_job(collector, job_id, 2) if job_id in str(span)]
        assert (span.name, span.attributes["atelier.outcome"]) == ("stop", state)
        assert span.error == error and span.start == span.end


async def test_canceled_job_waited_since_its_release(queue: Queue, collector: Collector) -> None:
    job, _ = await queue.put(a_job(traceparent=PARENT))
    (claim,) = await queue.claim("p", job.model, 1)
    await queue.release(claim)
    await queue.cancel(job.id)
    (span,) = await spans_of_job(collector, job.id, 1)
    assert span.name == "queue" and span.start >= claim.job.started_at


async def test_a_job_without_a_trace_leaves_none(hasty: Queue, collector: Collector) -> None:
    """The job is older than tracing, or its front end does not trace: only the worker's spans
    exist, in their own trace."""
    job, _ = await hasty.put(a_job(traceparent="nonsense"))
    (claim,) = await hasty.claim("p", job.model, 1)
    job_spans.report_wait(claim)
    with job_spans.attempt(claim) as context:
        pass
    await hasty.reap()

    async def is_there() -> bool:
        return bool(collector.spans)

    spans.flush()
    await eventually(is_there)
    assert [(span.id, span.parent) for span in collector.spans] == [
        (spans.log_ids(context)["span_id"], "")
    ]
