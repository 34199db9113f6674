"""Log lines of server and workers name the request id and the key id."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from service.auth.api_keys import id_of
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.tracing.log_context import log_fields
from service.tracing.log_format import JsonFormatter
from tests.service.compatible_requests import EXAMPLE_REQUESTS, spec_of
from tests.service.standin import MODEL, StandIn
from tests.service.test_keys import acme, settings  # noqa: F401 - fixtures

CAT = {"prompt": "a cat", "model": MODEL}
NO_JOB = {"/sdapi/v1/options", "/sdapi/v1/png-info"}


@pytest.fixture
async def pool(
    request: pytest.FixtureRequest, queue: Queue, store: Store
) -> AsyncIterator[StandIn]:
    """Stand-in worker of the model that the compatible endpoint's request uses."""
    async with StandIn(queue, store, spec_of(request.node.callspec.params["door"])) as pool:
        yield pool


class Lines(logging.Handler):
    """Log handler that stores each line as parsed JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, str]] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def logged() -> Iterator[list[dict[str, str]]]:
    handler, logger = Lines(), logging.getLogger("atelier")
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel("NOTSET")


@pytest.mark.parametrize("door", ["/v1/generate"])
async def test_log_lines_of_a_request_have_its_request_and_key_id(
    acme: httpx.AsyncClient,  # noqa: F811
    queue: Queue,
    pool: StandIn,
    door: str,
    logged: list[dict[str, str]],
) -> None:
    key_id = id_of(acme.headers["Authorization"].partition(" ")[2])
    with log_fields():
        answer = await acme.post(door, json=CAT, headers={"X-Request-Id": "mine"})
    ids = {(line["request_id"], line["key_id"], line["tenant"]) for line in logged}
    assert ids == {("mine", key_id, "acme")}
    accepted, answered = (line["message"] for line in logged)
    assert accepted.startswith("job ") and answered.startswith("POST /v1/generate 202")
    job = await queue.get(answer.json()["id"])
    assert job and (job.request_id, job.key_id) == ("mine", key_id)
    assert job.log_fields.items() <= logged[0].items()
    assert acme.headers["Authorization"][-40:] not in json.dumps(logged)


@pytest.mark.parametrize(
    "door", sorted(EXAMPLE_REQUESTS.keys() - NO_JOB - {"/v1/videos/{video_id}/remix"})
)
async def test_jobs_of_all_endpoints_have_both_ids(
    acme: httpx.AsyncClient,  # noqa: F811
    queue: Queue,
    pool: StandIn,
    door: str,
) -> None:
    example, key_id = EXAMPLE_REQUESTS[door], id_of(acme.headers["Authorization"].partition(" ")[2])
    files = {name: (f"{name}.png", data, "image/png") for name, data in example.files.items()}
    sent = (
        {"json": example.json} if example.json else {"data": example.form, "files": files or None}
    )
    headers = {"X-Request-Id": "mine", "Accept": "application/json, text/event-stream, image/png"}
    answer = await acme.post(example.path, headers=headers, **sent)
    jobs = await queue.list(tenant="acme", limit=9)
    assert [(job.request_id, job.key_id) for job in jobs] == [("mine", key_id)], answer.text
