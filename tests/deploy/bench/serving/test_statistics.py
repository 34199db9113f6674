"""Statistics of a load report, computed from made-up answers."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deploy.bench.serving.load import Alone, alone_of
from deploy.bench.serving.report import dues, fairness, jain, report
from deploy.bench.serving.request_outcome import REFUSED, SUCCEEDED, RequestOutcome
from deploy.bench.serving.run import Run
from deploy.bench.serving.statistics import (
    deadlines,
    goodput,
    percentile,
    refusals,
    reuse,
    throughput,
    waits,
)
from deploy.bench.serving.table import seconds, show
from deploy.bench.serving.timed_request import TimedRequest

SMALL = TimedRequest(at_s=0, request={"model": "a"}, tenant="one")
LARGE = TimedRequest(at_s=0, request={"model": "b"}, tenant="two")
ALONE = {
    SMALL.shape: Alone(1.0, 0.01, 0.0, 0.9, 0.8, 0.2, 0.01, samples=3),
    LARGE.shape: Alone(10.0, 0.01, 0.0, 9.9, 9.0, 1.0, 0.01, samples=3),
}


def done(entry: TimedRequest, whole_s: float, **rest: Any) -> RequestOutcome:
    defaults = {"queue_s": 0.0, "run_s": whole_s, "device_s": whole_s, "images": 1}
    return RequestOutcome(
        entry, outcome=SUCCEEDED, whole_s=whole_s, ended_at_s=whole_s, **defaults | rest
    )


def refused(entry: TimedRequest, reason: str, after_s: float) -> RequestOutcome:
    return RequestOutcome(entry, outcome=REFUSED, status=429, reason=reason, retry_after_s=after_s)


def test_percentiles_are_numpys() -> None:
    values = [5.0, 1.0, 4.0, 2.5]
    for percent in (0, 10, 50, 90, 99, 100):
        expected = float(np.percentile(values, percent))
        assert percentile(values, percent) == pytest.approx(expected, rel=1e-12), percent
    assert percentile([3.0], 99) == 3.0
    assert percentile([], 50) is None


def test_goodput_counts_all_requests() -> None:
    answers = [done(SMALL, 1.4), done(SMALL, 2.5), done(LARGE, 15.0), refused(SMALL, "full", 1)]
    rows = goodput(answers, ALONE, [1, 1.5, 2, 4])
    assert [row["met"] for row in rows] == [0, 2, 2, 3]
    assert [row["share"] for row in rows] == [0, 0.5, 0.5, 0.75]
    assert goodput(answers, {}, [1]) == [], "0 % of nothing known is no figure"


def test_failures_are_not_goodput() -> None:
    answer = replace(done(SMALL, 0.5), outcome="failed")
    assert goodput([answer], ALONE, [4])[0]["met"] == 0


def test_attainment_of_requested_deadlines() -> None:
    tight, loose = (SMALL.model_copy(update={"deadline_scale": scale}) for scale in (2.0, 4.0))
    answers = [
        done(tight, 1.9, deadline_s=2.0),
        done(tight, 2.1, deadline_s=2.0),
        replace(refused(tight, "deadline_too_soon", 3), deadline_s=2.0),
        done(loose, 3.0, deadline_s=4.0),
        done(SMALL, 99.0),
    ]
    rows = deadlines(answers)
    assert [(row["scale"], row["asked"], row["met"]) for row in rows] == [(2.0, 3, 1), (4.0, 1, 1)]
    assert rows[0]["outcomes"] == {SUCCEEDED: 2, REFUSED: 1}


def test_refusals_by_reason() -> None:
    answers = [refused(SMALL, "queue_full", s) for s in (2.0, 4.0)] + [refused(SMALL, "quota", 9.0)]
    first, second = refusals([*answers, done(SMALL, 1)])
    assert (first["reason"], first["count"], first["retry_after_s"]["p50"]) == ("queue_full", 2, 3)
    assert (second["status"], second["retry_after_s"]["max"]) == (429, 9)


def test_throughput_is_measured_over_the_arrival_window() -> None:
    answers = [done(SMALL, 1.0, images=2), done(SMALL, 4.0), done(SMALL, 11.0)]
    rate = throughput(answers, 10.0)
    assert rate["asked_per_s"] == 0.3
    assert (rate["done_per_s"], rate["pictures_per_s"], rate["device_s_per_s"]) == (0.2, 0.3, 0.5)
    assert throughput([done(SMALL, 1.0, device_s=None)], 10.0)["device_s_per_s"] is None


def test_overhead_of_the_service() -> None:
    answer = done(SMALL, 2.0, late_s=0.1, queue_s=0.3, run_s=1.2, device_s=1.0)
    assert answer.outside_s == pytest.approx(0.4, abs=1e-12)
    assert answer.added_s == pytest.approx(0.6, abs=1e-12)
    answers = [replace(answer, device_s=s) for s in (1.0, 1.1, 1.4)]
    assert alone_of(answers).added_s == pytest.approx(0.5, abs=1e-12), "the median"
    assert alone_of([replace(answer, device_s=None)]).added_s is None
    assert waits([answer, refused(SMALL, "full", 1)])["run_s"]["p50"] == 1.2


def test_outcome_has_the_times_of_the_job() -> None:
    answer = RequestOutcome(SMALL)
    answer.record_job(
        {
            "state": "succeeded",
            "created_at": "2026-01-01T00:00:00.000Z",
            "started_at": "2026-01-01T00:00:01.500Z",
            "finished_at": "2026-01-01T00:00:04.000Z",
            "usage": {"device_seconds": 2.0},
            "outputs": [{}, {}],
        }
    )
    assert (answer.queue_s, answer.run_s, answer.device_s, answer.images) == (1.5, 2.5, 2.0, 2)
    other = RequestOutcome(SMALL)
    other.record_job({"state": "failed", "error": {"code": "non_finite"}})
    assert (other.outcome, other.reason, other.queue_s) == ("failed", "non_finite", None)


@pytest.mark.parametrize(
    ("asked", "weights", "whole", "wanted"),
    [
        ({"a": 9, "b": 9}, {}, 6, {"a": 3, "b": 3}),
        ({"a": 9, "b": 9}, {"a": 2.0}, 6, {"a": 4, "b": 2}),
        ({"a": 1, "b": 9, "c": 9}, {}, 7, {"a": 1, "b": 3, "c": 3}),
        ({"a": 1, "b": 2}, {}, 9, {"a": 1, "b": 2}),
    ],
)
def test_fair_shares(
    asked: dict[str, float], weights: dict[str, float], whole: float, wanted: dict[str, float]
) -> None:
    assert dues(asked, weights, whole) == pytest.approx(wanted, abs=1e-12)


def test_fairness() -> None:
    """Two tenants with nearly the same work; one of them finishes nothing in time."""
    answers = [done(LARGE, 20.0), *(done(SMALL, 2.0) for _ in range(10))]
    result = fairness(answers, ALONE, {}, window_s=30.0)
    assert result["tenants"]["two"]["slowdown_p50"] == 2.0
    assert result["jain"] == pytest.approx(1, abs=1e-12), "all had all that they asked for"
    late = fairness(answers, ALONE, {}, window_s=10.0)["tenants"]
    assert late["one"]["got_s"] == pytest.approx(8, abs=1e-12)
    assert late["two"]["got_of_due"] == 0
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([]) is None


def test_a_report_is_shown_and_is_json() -> None:
    answers = [done(SMALL, 1.0), done(LARGE, 12.0), refused(SMALL, "queue_full", 3)]
    run = Run("http://here", "2026-01-01T00:00:00+00:00", 4, 20.0, True, answers, ALONE, 1, 0)
    result = report(run, [1, 2], {})
    assert json.loads(json.dumps(result)) == result
    out = io.StringIO()
    show(result, Console(file=out, width=200))
    for words in (
        "3 of 4 requests, interrupted",
        "queue_full",
        "received/share",
        "lost connections",
    ):
        assert words in out.getvalue(), words
    empty = report(replace(run, answers=[], alone={}), [1], {})
    show(empty, Console(file=io.StringIO()))


def test_reuse_is_reported_with_its_savings() -> None:
    given = {"device_s": 0.0, "reuses": "job_1"}
    answers = [
        done(SMALL, 1.0, job_id="job_1", device_s=3.0),
        done(SMALL, 0.1, job_id="job_2", is_hit=True, **given),
        done(SMALL, 1.0, job_id="job_3", **given),
        done(LARGE, 1.0, job_id="job_4", device_s=4.0),
        done(LARGE, 1.0, job_id="job_5", device_s=0.0, reuses="job_of_another_load"),
    ]
    assert reuse(answers) == {
        "repeated": 3,
        "reused": 3,
        "hits": 1,
        "share": 0.6,
        "saved_device_s": 6.0,
        "saved_share": 6 / 13,
    }
    run = Run("http://here", "2026-01-01T00:00:00+00:00", 5, 20.0, False, answers, ALONE, 0, 0)
    out = io.StringIO()
    show(report(run, [1], {}), Console(file=out, width=200))
    assert "3 (60.0%), 1 at once, of 3 repeated; saved 6 s of the device, 46.2%" in out.getvalue()
    assert reuse([])["share"] == 0


def test_seconds_are_formatted() -> None:
    assert [seconds(s) for s in (None, 0.0123, 0.9999, 61.25, 3600.4)] == [
        "–",
        "12.3 ms",
        "1 s",
        "61.2 s",
        "3600 s",
    ]
