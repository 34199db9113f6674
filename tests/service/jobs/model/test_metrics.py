"""Job metrics: ends, waits and lapsed leases count once, whichever call reports them, even if a
script is repeated (see also `test_lost_responses.py`)."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from models.spec.model_spec import ModelSpec
from service.jobs.model.job import JobError, JobState
from service.jobs.model.metrics import JobEnd
from service.jobs.queue import Claim, Queue
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job, a_snapshot

STORE = JobError(code="store", message="the store cannot be written")
NAMES = ("ends", "deadlines", "reclaimed", "retries", "wait", "duration")


def counted(*queues: Queue) -> Counter[tuple[str, ...]]:
    """Sum the queues' counters: (metric, label values …) → count."""
    counts: Counter[tuple[str, ...]] = Counter()
    for queue in queues:
        for name in NAMES:
            (family,) = getattr(queue.job_metrics, name).collect()
            for sample in family.samples:
                if sample.name.endswith(("_total", "_count")) and sample.value:
                    counts[name, *sample.labels.values()] += int(sample.value)
    return counts


async def test_job_end_is_counted_once_by_the_call_that_ended_it(
    queue: Queue, connect: Connect
) -> None:
    front = await connect()
    for _ in range(5):
        await queue.put(a_job(tenant_class="gold"))
    first, second, third, fourth, fifth = await queue.claim("pool", MODEL, 5)
    assert await queue.finish(first, [], USAGE)
    assert not await queue.finish(Claim(second.job, second.fence + 1), [], USAGE)
    await queue.fail(second, FAILURE)
    await queue.fail(third, STORE, retry=True)
    for _ in range(2):
        await front.cancel(fourth.job.id)
        await front.delete(fifth.job.id)
    await front.delete(first.job.id)
    assert counted(queue) == {
        ("wait", MODEL, "gold"): 5,
        ("ends", MODEL, "gold", "succeeded"): 1,
        ("ends", MODEL, "gold", "failed"): 1,
        ("duration", MODEL, "succeeded"): 1,
        ("duration", MODEL, "failed"): 1,
        ("retries", MODEL, "store"): 1,
    }
    assert counted(front) == {
        ("ends", MODEL, "gold", "canceled"): 2,
        ("duration", MODEL, "canceled"): 2,
    }


async def test_second_claim_adds_no_wait(queue: Queue) -> None:
    await queue.put(a_job())
    for _ in range(3):
        (claim,) = await queue.claim("pool", MODEL, 1)
        await queue.release(claim)
    assert counted(queue) == {("wait", MODEL, "default"): 1}


async def test_jobs_are_in_time_by_their_deadline_or_by_the_models_objective(
    queue: Queue,
) -> None:
    """A job with a deadline counts when it ends, others at their first claim. Canceled jobs do not
    count."""
    now = time.time()
    queue.job_metrics.objectives[MODEL] = 60
    await queue.put(a_job())
    for _ in range(2):
        (claim,) = await queue.claim("pool", MODEL, 1)
        await queue.release(claim)
    assert in_time(queue) == {"met": 1}
    for waited_s in (59, 61, 70):
        queue.job_metrics.claimed(a_job(created_at=now - waited_s, started_at=now))
    assert in_time(queue) == {"met": 2, "missed": 2}
    late = a_job(created_at=now - 90, started_at=now, deadline_at=now + 900)
    queue.job_metrics.claimed(late)
    assert in_time(queue) == {"met": 2, "missed": 2}, "counted when it ends"
    queue.job_metrics.ended(JobEnd.of(late, JobState.SUCCEEDED, now + 899))
    queue.job_metrics.ended(JobEnd.of(late, JobState.EXPIRED, now + 901))
    queue.job_metrics.ended(JobEnd.of(late, JobState.CANCELED, now + 901))
    assert in_time(queue) == {"met": 3, "missed": 3}


def in_time(queue: Queue) -> dict[str, float]:
    """Number of jobs by outcome: met or missed."""
    (family,) = queue.job_metrics.in_time.collect()
    return {sample.labels["outcome"]: sample.value for sample in family.samples if sample.value}


async def test_ends_found_by_scripts_are_counted_by_one_reaper(
    queue: Queue, connect: Connect
) -> None:
    """The deadline passes before a claim. Each of two reapers receives a part of the events, and
    both together all of them."""
    front, other = await connect(), await connect()
    late, _ = await queue.put(a_job(deadline_at=time.time() - 1))
    assert await queue.claim("pool", MODEL, 1) == []
    assert (await queue.get(late.id)).state is JobState.EXPIRED
    assert counted(queue) == {}
    for _ in range(2):
        await front.reap()
        await other.reap()
    assert counted(front, other) == {
        ("ends", MODEL, "default", "expired"): 1,
        ("duration", MODEL, "expired"): 1,
        ("deadlines", MODEL, "default", "missed"): 1,
    }


async def test_lapses_are_counted_and_whether_the_job_waits_again(hasty: Queue) -> None:
    await hasty.put(a_job())
    for pool in ("first", "second"):
        await hasty.claim(pool, MODEL, 1)
        await hasty.reap()
    assert counted(hasty) == {
        ("wait", MODEL, "default"): 1,
        ("reclaimed", MODEL): 2,
        ("retries", MODEL, "lost"): 1,
        ("ends", MODEL, "default", "failed"): 1,
        ("duration", MODEL, "failed"): 1,
    }


async def test_reap_counts_more_notes_than_one_script_call_returns(hasty: Queue) -> None:
    """More events than one script call returns."""
    for _ in range(450):
        await hasty.put(a_job())
    await hasty.claim("dead", MODEL, 450)
    await hasty.reap()
    assert counted(hasty)["reclaimed", MODEL] == 450


@pytest.mark.parametrize(
    ("outcome", "finished_at", "deadline_at", "expected"),
    [
        (JobState.SUCCEEDED, 10.0, 11.0, "met"),
        (JobState.SUCCEEDED, 12.0, 11.0, "missed"),
        (JobState.FAILED, 10.0, 11.0, "missed"),
        (JobState.EXPIRED, 12.0, 11.0, "missed"),
        (JobState.CANCELED, 10.0, 11.0, None),
        (JobState.SUCCEEDED, 10.0, None, None),
    ],
)
def test_deadlines(
    outcome: JobState, finished_at: float, deadline_at: float | None, expected: str | None
) -> None:
    end = JobEnd(MODEL, outcome, 0.0, finished_at, deadline_at=deadline_at)
    assert end.deadline == expected


async def test_backlog_is_the_remaining_work(queue: Queue, a_spec: ModelSpec) -> None:
    """Queued jobs count their cost less saved steps; running jobs count their remaining steps."""
    await queue.register("pool", a_spec, ready=True)
    await queue.unregister("pool", MODEL)
    empty = (await queue.depths())[MODEL]
    assert (empty.queued, empty.running, empty.oldest_s, empty.backlog_s) == (0, 0, 0, 0)
    for tenant, cost in (("a", 8.0), ("a", 4.0), ("b", 2.0)):
        await queue.put(a_job(tenant=tenant, cost=cost, steps=10))
    assert (await queue.depths())[MODEL].backlog_s == 14
    claims = await queue.claim("pool", MODEL, 3)
    first = next(claim for claim in claims if claim.job.cost == 8)
    await queue.progress(first, 5, 10)
    depth = (await queue.depths())[MODEL]
    assert (depth.queued, depth.running, depth.backlog_s) == (0, 3, 10)
    await queue.snapshot(first, [a_snapshot(first, step=5)])
    await queue.release(first)
    depth = (await queue.depths())[MODEL]
    assert (depth.queued, depth.backlog_s) == (1, 10)
    assert 0 <= depth.oldest_s < 60  # since its release, by Redis's clock
    for claim in claims:
        await queue.cancel(claim.job.id)
    assert (await queue.depths())[MODEL].backlog_s == 0
