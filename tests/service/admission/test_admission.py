"""Admission as other routes call it: a body and headers in, a job out; nothing of HTTP."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from fastapi import FastAPI

from service.admission.admission import admit
from service.admission.caller import Caller
from service.admission.parse import parse_body
from service.errors.problems import Conflict, Invalid, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import DEFAULT_TENANT, Job
from tests.service.standin import StandIn

T = TypeVar("T")
BODY = {"prompt": "a star", "seed": 3, "metadata": {"of": "us"}}


async def connected(work: Coroutine[Any, Any, T]) -> T:
    return await work


@pytest.fixture
def front(app: FastAPI, pool: StandIn) -> FrontEnd:
    found: FrontEnd = app.state.front
    return found


async def admitted(front: FrontEnd, body: dict[str, Any], **headers: str) -> Job:
    caller = Caller(DEFAULT_TENANT, "127.0.0.1", connected)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await admit(front, caller, parse_body(body), named)


async def test_a_body_becomes_a_job(front: FrontEnd) -> None:
    job = await admitted(front, BODY)
    assert (job.request["prompt"], job.request["seed"], job.metadata) == ("a star", 3, {"of": "us"})
    assert await front.queue.get(job.id) is not None


async def test_an_idempotency_key_stands_for_its_first_job(front: FrontEnd) -> None:
    first = await admitted(front, BODY, idempotency_key="one")
    assert (await admitted(front, BODY, idempotency_key="one")).id == first.id
    with pytest.raises(Conflict):
        await admitted(front, BODY | {"seed": 4}, idempotency_key="one")


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"prompt": "a", "steps": 3}, ["steps"]),
        ({"prompt": "a", "width": 9, "strength": 0.5}, ["width", "strength"]),
        ({"seed": -1}, ["prompt", "seed"]),
    ],
)
async def test_every_wrong_field_is_named(
    front: FrontEnd, body: dict[str, Any], fields: list[str]
) -> None:
    with pytest.raises(Invalid) as refused:
        await admitted(front, body)
    assert {error.field for error in refused.value.errors} == {*fields}


async def test_nothing_is_queued_after_a_refusal(front: FrontEnd) -> None:
    with pytest.raises(Problem):
        await admitted(front, BODY | {"model": "no such model"})
    assert await front.queue.list(limit=10) == []
