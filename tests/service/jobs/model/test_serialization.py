"""Serialization of jobs as Redis hashes: round trip of every field, and jobs of other versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.jobs.model import serialization
from service.jobs.model.errors import WireError
from service.jobs.model.job import WIRE_VERSION, Job, JobState
from service.jobs.queue import Queue
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job, an_output

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)  # JSON's numbers
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
TIMES = st.none() | st.floats(0, 2e9)


@given(
    request=st.dictionaries(st.text(), VALUES, max_size=3),
    metadata=st.dictionaries(st.text(), st.text(), max_size=3),
    times=st.tuples(TIMES, TIMES, TIMES),
    state=st.sampled_from(JobState),
)
def test_round_trip(
    request: dict[str, object],
    metadata: dict[str, str],
    times: tuple[float | None, ...],
    state: JobState,
) -> None:
    job = a_job(
        request=request,
        metadata=metadata,
        started_at=times[0],
        finished_at=times[1],
        deadline_at=times[2],
        state=state,
        usage=USAGE,
        error=FAILURE,
    )
    job.outputs.append(an_output(job))
    assert serialization.from_hash(serialization.to_hash(job)) == job


def test_unknown_fields_are_ignored() -> None:
    job = a_job()
    assert serialization.from_hash(serialization.to_hash(job) | {"colour": "red"}) == job


def test_missing_fields_have_their_defaults() -> None:
    fields = {"version": "1", "id": "job_1", "model": MODEL, "bucket": "b"}
    assert serialization.from_hash(fields) == Job(id="job_1", model=MODEL, bucket="b")


async def test_newer_job_is_left_to_newer_workers(queue: Queue) -> None:
    old, _ = await queue.put(a_job())
    newer, _ = await queue.put(a_job(version=WIRE_VERSION + 1), idempotency_key="once")
    with pytest.raises(WireError, match="upgrade"):
        await queue.put(a_job(), idempotency_key="once")
    with pytest.raises(WireError, match="upgrade"):
        await queue.get(newer.id)
    claims = await queue.claim("pool", MODEL, 4)
    assert [claim.job.id for claim in claims] == [old.id]
    assert await queue.claim("pool", MODEL, 4) == []
    assert await queue.rank(newer) == 0
