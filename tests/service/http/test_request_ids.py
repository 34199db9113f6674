"""Request ids: in every response, and in the request's job."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from fastapi import FastAPI

from service.jobs.model.job import Job
from service.jobs.model.serialization import from_hash, to_hash
from service.jobs.queue import Queue
from tests.service.standin import MODEL, StandIn

CAT = {"prompt": "a cat", "model": MODEL}
MADE = re.compile(r"req_[0-9a-f]{24}")


async def response_id(http: httpx.AsyncClient, path: str, *ids: str) -> str:
    """Send a request with these ids; return the response's id."""

    async def get() -> httpx.Response:
        return await http.get(path, headers=[("X-Request-Id", value) for value in ids])

    answer = await asyncio.create_task(get())
    (request_id,) = answer.headers.get_list("x-request-id")
    return request_id


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/v1/jobs", "/v1/jobs/job_1"])
async def test_a_clients_id_is_taken(http: httpx.AsyncClient, path: str) -> None:
    for client_id in ("a", "0af7-6519_16cd.43/dd=+:@~", "x" * 128):
        assert await response_id(http, path, client_id) == client_id


@pytest.mark.parametrize(
    "given",
    [(), ("",), ("x" * 129,), ("two words",), ("a\tb",), ('"a"',), ("{a}",), ("a", "b")],
)
async def test_malformed_request_id_is_replaced(
    http: httpx.AsyncClient, given: tuple[str, ...]
) -> None:
    made = {await response_id(http, "/healthz", *given) for _ in range(2)}
    assert len(made) == 2 and all(map(MADE.fullmatch, made))


async def test_error_responses_have_a_request_id(
    app: FastAPI, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.state.front, "loras", None)
    broken = await http.get("/v1/loras", headers={"X-Request-Id": "mine"})
    assert (broken.status_code, broken.headers["x-request-id"]) == (500, "mine")
    elsewhere = await http.get("/healthz", headers={"Host": "a b", "X-Request-Id": "mine"})
    assert (elsewhere.status_code, elsewhere.headers["x-request-id"]) == (400, "mine")


async def test_request_without_keys_has_no_key_id(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn
) -> None:
    job = await queue.get((await http.post("/v1/generate", json=CAT)).json()["id"])
    assert job and MADE.fullmatch(job.request_id or "") and job.key_id is None


def test_a_job_of_before_has_neither() -> None:
    fields = to_hash(Job(id="job_1", model="m", bucket="b", request_id="r", key_id="k"))
    assert from_hash(fields).log_fields["request_id"] == "r"
    del fields["request_id"], fields["key_id"]
    assert from_hash(fields).request_id is None
    assert not {"request_id", "key_id"} & to_hash(from_hash(fields)).keys()
