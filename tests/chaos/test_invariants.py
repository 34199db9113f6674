"""Each kind of wrong history breaks its own invariant, and a good history breaks none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.jobs.model.ledger import LedgerRecord
from tests.chaos.history import Answer, Exit, History, JobEvent, JobRecord, OrderResult
from tests.chaos.invariants import breaches
from tests.chaos.orders import AGAIN, LONG_S, SHORT_S, FollowUp, Order
from tests.chaos.plan import Kind

ORDER = Order(0, 0.0, "acme", "short", "normal", None, "order 0", 1)
VERIFIED = replace(ORDER, then=FollowUp.VERIFIES)
IN_AN_HOUR = replace(ORDER, deadline_s=LONG_S)
EVENTS = (
    JobEvent(1, "queued", {}),
    JobEvent(2, "running", {"pool": "one", "attempt": 1}),
    JobEvent(3, "progress", {"step": 3, "steps": 4}),
    JobEvent(4, "queued", {}),
    JobEvent(5, "running", {"pool": "two", "attempt": 2}),
    JobEvent(6, "progress", {"step": 2, "steps": 4}),
    JobEvent(7, "succeeded", {}),
)
VIEW = {
    "id": "job_1",
    "state": "succeeded",
    "metadata": {"order": "0"},
    "outputs": [{"sha256": "aa"}],
    "usage": {"device_seconds": 1.0},
    "reuses": None,
}
RECORD = LedgerRecord(
    id="1-0",
    job="job_1",
    tenant="acme",
    model="pictures",
    outcome="succeeded",
    ended_at=1.0,
    images=1,
    device_seconds=1.0,
    tenant_seconds=0.75,
    house_seconds=0.25,
    lost_seconds=0.25,
)
TOTALS = {
    ("jobs", "pictures", "default", "succeeded"): 1,
    ("images", "pictures", "default"): 1,
    ("device_seconds", "pictures", "default", "succeeded", "tenant"): 750_000,
    ("device_seconds", "pictures", "default", "lost", "house"): 250_000,
}
JOB = JobRecord("acme", VIEW, EVENTS, 2, "2 finish succeeded", ("outputs/job_1/2-0.png",), ("aa",))


def history(job: JobRecord = JOB, **changes: Any) -> History:
    result = OrderResult(ORDER, ["job_1", "job_1"], [Answer(503, "2", "away")])
    valid = History([result], [job], {"short": ("aa",)}, [Exit("pool-0", 0, Kind.DRAIN, 3.0)])
    return replace(replace(valid, ledger=[RECORD], totals=TOTALS), **changes)


def test_a_good_history_breaks_nothing() -> None:
    assert breaches(history()) == []
    assert "1 jobs" in history().summary()
    results = with_result(order=replace(ORDER, deadline_s=SHORT_S)).results
    assert breaches(replace(ended("expired", JobEvent(7, "expired", {})), results=results)) == []
    deleted = with_result(order=replace(ORDER, then=FollowUp.DELETES), is_deleted=True)
    assert breaches(replace(deleted, jobs=[])) == []
    assert breaches(with_result(order=VERIFIED, verdicts=["identical"])) == []
    expired = with_result(order=replace(VERIFIED, deadline_s=SHORT_S)).results
    assert breaches(replace(ended("expired", JobEvent(7, "expired", {})), results=expired)) == []


def test_unclaimed_copies_are_not_stale_results() -> None:
    files = {"fence": 0, "settled": "", "keys": ("outputs/job_1/0-0.png",)}
    events = (JobEvent(1, "queued", {}), JobEvent(2, "succeeded", {}))
    copy = job(view=VIEW | {"reuses": "job_0"}, events=events, **files)
    again = [OrderResult(replace(ORDER, request=AGAIN), ["job_1"])]
    assert breaches(replace(copy, results=again, expected={AGAIN: ("aa",)})) == []


def with_result(**changes: Any) -> History:
    return history(results=[replace(history().results[0], **changes)])


def job(**changes: Any) -> History:
    return history(replace(JOB, **changes))


def ended(state: str, *tail: JobEvent) -> History:
    """History whose job is in that state, with these last events."""
    changed = job(view=VIEW | {"state": state}, events=EVENTS[:-1] + tail)
    return replace(changed, **recorded(outcome=state))


def recorded(*more: LedgerRecord, **changes: Any) -> dict[str, Any]:
    """Ledger record of the job with changes, and the matching sums."""
    record = RECORD.model_copy(update=changes)
    outcome = {
        name: (*name[:3], record.outcome, *name[4:]) for name in TOTALS if "succeeded" in name
    }
    sums = {outcome.get(name, name): value for name, value in TOTALS.items()}
    return {"ledger": [record, *more], "totals": sums}


WRONG: dict[str, Callable[[], History]] = {
    "accepted_is_kept: job_2 of": lambda: with_result(jobs=["job_1", "job_2"]),
    "accepted_is_kept: job_1 of": lambda: history(jobs=[]),
    "accepted_is_kept: job_1 was deleted": lambda: with_result(
        order=replace(ORDER, then=FollowUp.DELETES), is_deleted=True
    ),
    "one_end: job_1 has not ended": lambda: ended("running"),
    "one_end: job_1 is succeeded and": lambda: ended("succeeded"),
    "one_end: job_1 is succeeded and its": lambda: ended(
        "succeeded", EVENTS[-1], JobEvent(8, "succeeded", {})
    ),
    "one_end: job_1 is succeeded and its events": lambda: ended(
        "succeeded", EVENTS[-1], JobEvent(8, "progress", {"step": 4, "steps": 4})
    ),
    "a_good_end: job_1 failed": lambda: ended("failed", JobEvent(7, "failed", {})),
    "a_good_end: job_1 expired": lambda: ended("expired", JobEvent(7, "expired", {})),
    "a_good_end: job_1 expired, due in 3600": lambda: replace(
        ended("expired", JobEvent(7, "expired", {})), results=with_result(order=IN_AN_HOUR).results
    ),
    "one_job_a_key": lambda: history(jobs=[JOB, replace(JOB, view=VIEW | {"id": "job_2"})]),
    "events_in_order: job_1 has events": lambda: job(events=EVENTS[::-1]),
    "events_in_order: job_1 was claimed": lambda: job(fence=3, settled="3 finish succeeded"),
    "events_in_order: job_1 went back": lambda: job(
        events=(*EVENTS[:3], JobEvent(4, "progress", {"step": 2, "steps": 4}), *EVENTS[4:])
    ),
    "no_stale_result": lambda: job(settled="1 finish succeeded"),
    "no_stale_result: job_1: claim 2": lambda: job(keys=("outputs/job_1/1-0.png",)),
    "same_pixels": lambda: job(digests=("bb",)),
    "given_only_what_may_be: job_1 was to be drawn": lambda: job(view=VIEW | {"reuses": "job_0"}),
    "given_only_what_may_be: job_1 has files of another": lambda: history(
        jobs=[
            replace(JOB, view=VIEW | {"reuses": "job_2"}),
            replace(JOB, tenant="bolt", view=VIEW | {"id": "job_2"}),
        ],
        results=[OrderResult(replace(ORDER, request=AGAIN), ["job_1"])],
        expected={AGAIN: ("aa",)},
    ),
    "verified_identical: job_1 has the verdicts ['different']": lambda: with_result(
        order=VERIFIED, verdicts=["different"]
    ),
    "verified_identical: job_1 has the verdicts []": lambda: with_result(order=VERIFIED),
    "paused_is_finished: job_1 continues another": lambda: with_result(continued=["job_1"]),
    "paused_is_finished: the rest of order 0 became": lambda: with_result(
        continued=["job_1", "job_2"]
    ),
    "a_good_end: job_1 paused": lambda: ended("paused", JobEvent(7, "paused", {})),
    "polite": lambda: with_result(answers=[Answer(500, None, "?")]),
    "polite: order 0": lambda: with_result(answers=[Answer(503, None, "away")]),
    "recorded_once: job_1 has 0": lambda: history(ledger=[], totals={}),
    "recorded_once: job_1 has 2": lambda: history(ledger=[RECORD, RECORD]),
    "recorded_once: job_9 has 0": lambda: with_result(jobs=["job_1", "job_9"]),
    "recorded_once: job_1 of acme succeeded": lambda: history(**recorded(outcome="canceled")),
    "recorded_once: job_1 of acme": lambda: history(**recorded(tenant="bolt")),
    "recorded_once: job_1 used 2.0": lambda: history(**recorded(device_seconds=2.0)),
    "balanced: record 1-0 of job_1": lambda: history(**recorded(tenant_seconds=0.5)),
    "balanced: ('images', 'pictures', 'default') is 1, by the records 2": lambda: history(
        ledger=[RECORD.model_copy(update={"images": 2})]
    ),
    "known_keys": lambda: history(unknown_keys=["{atelier}:what"]),
    "nothing_left: key": lambda: history(left_keys=["{atelier}:leases"]),
    "nothing_left: file": lambda: history(left_files=["outputs/job_1"]),
    "whole_capacity": lambda: history(pools_without_slots=1),
    "nothing_left: process": lambda: history(left_processes=["7 python"]),
    "orderly_exits": lambda: history(exits=[Exit("pool-0", 1, None, 0.0)]),
    "orderly_exits: Exit(name='pool-0', code=1": lambda: history(
        exits=[Exit("pool-0", 1, Kind.DRAIN, 3.0)]
    ),
    "orderly_exits: Exit(name='pool-0', code=0": lambda: history(
        exits=[Exit("pool-0", 0, Kind.DRAIN, 31.0)]
    ),
    "everybody_served": lambda: history(jobs=[], results=[OrderResult(ORDER)]),
}


@pytest.mark.parametrize("what", WRONG)
def test_invariant_violations_are_named(what: str) -> None:
    assert any(str(breach).startswith(what) for breach in breaches(WRONG[what]()))


def test_a_breach_shows_the_jobs_events() -> None:
    (breach,) = breaches(ended("failed", JobEvent(7, "failed", {"error": {"code": "internal"}})))
    assert "7 failed {'error': {'code': 'internal'}}" in str(breach)
