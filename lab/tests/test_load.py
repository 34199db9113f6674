"""Short runs of the programs of `make -C lab load`; their figures need a quiet machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.embedded_redis import embedded
from lab.load import backlog, light, shares, trace


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with embedded(tmp_path) as url:
        yield url


async def test_claims_of_a_backlog(url: str) -> None:
    row = await backlog.measure(url, jobs=100, slots=8, seconds=60)
    queued, at_a_time, *_, jobs, _ = row.strip("| ").split(" | ")
    assert (queued, at_a_time) == ("100", "8")
    assert int(jobs) >= 50, "half of them"


async def test_shares_of_waiting_tenants(url: str) -> None:
    result = await shares.measure(url, tenants=4, jobs=2000, seconds=3)
    assert result.jobs > 0 and set(result.got) <= set(result.weights)


def test_a_share_is_held_against_the_weight() -> None:
    result = shares.Shares(Counter({"a": 40.0, "b": 50.0}), {"a": 1, "b": 1, "c": 1})
    assert (result.worst, result.worst_s) == (-1, -30), "c has nothing"
    assert result.of_weight(1) == pytest.approx(0, abs=1e-9), "all of a weight are all"
    double = shares.Shares(Counter({"a": 30.0, "b": 60.0}), {"a": 1, "b": 2})
    assert (double.worst, double.of_weight(2)) == (0, 0)


async def test_a_light_tenant_behind_a_backlog(url: str) -> None:
    waits_s = await light.waits(url, others=2, backlog=300, seconds=4)
    assert waits_s and min(waits_s) >= 0


def test_a_trace_under_all_orders(url: str) -> None:
    minutes = 1.0
    requests = list(trace.trace(1.0, minutes))
    assert requests == list(trace.trace(1.0, minutes)), "one trace for all"
    result_rows = list(trace.rows(url, [1.0], minutes))
    assert [row.order for row in result_rows] == list(trace.Order)
    assert all(len(row.answers) == len(requests) for row in result_rows), "everyone has an answer"
    assert "| 1.0 | ours |" in "\n".join(trace.table(result_rows))


def test_unserved_tenants_are_late() -> None:
    request = trace.TraceRequest(0.0, "dev", 6.0, 2.0, "app", 2.0, 1)
    answers = [trace.Answer(request, wait_s, took_s) for wait_s, took_s in ((8, 14), (9, 15))]
    row = trace.Row(trace.Order.OURS, 1.0, [*answers, trace.Answer(request, None, None)])
    assert row.in_time() == row.in_time("dev") == pytest.approx(1 / 3, abs=1e-9), "of 14 s"
    assert row.wait_s(50) == 8.5, "of the two that were started"
