"""What `make load` runs, in small: that it runs. Its figures want a quiet machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.redis import embedded
from tests.load import backlog, light, shares, trace


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with embedded(tmp_path) as url:
        yield url


async def test_claims_of_a_backlog(url: str) -> None:
    row = await backlog.measure(url, jobs=100, slots=8, seconds=60)
    queued, at_a_time, *_, jobs, _ = row.strip("| ").split(" | ")
    assert (queued, at_a_time) == ("100", "8")
    assert int(jobs) >= 50, "half of them"


async def test_shares_of_those_who_wait(url: str) -> None:
    found = await shares.measure(url, tenants=4, jobs=2000, seconds=3)
    assert found.jobs > 0 and set(found.got) <= set(found.weights)


async def test_a_light_tenant_behind_a_backlog(url: str) -> None:
    found = await light.waits(url, others=2, backlog=300, seconds=4)
    assert found and min(found) >= 0


def test_a_trace_under_both_orders(url: str) -> None:
    minutes = 1.0
    asks = list(trace.trace(1.0, minutes))
    assert asks == list(trace.trace(1.0, minutes)), "one trace for both"
    found = list(trace.rows(url, [1.0], minutes))
    assert [row.order for row in found] == ["first come", "ours"]
    assert all(len(row.answers) == len(asks) for row in found), "everyone has an answer"
    assert "| 1.0 | ours |" in "\n".join(trace.table(found))
