"""A job's warnings reach the client of every endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.jobs.model.job import FieldWarning
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.responses.warning_header import MAX_CHARS, NAME, warning_header
from tests.service.compatible_requests import EXAMPLE_REQUESTS, ExampleRequest, spec_of
from tests.service.standin import MODEL, StandIn

SEED = 2**32 + 7
"""Seed with bits that torch's generator ignores, which is a warning."""
INSIDE = {
    "/hf/{model}": "parameters",
    "/hf/{model} of an image": "parameters",
    "/v1/predictions": "input",
    "/v1/models/{name}/predictions": "input",
}
"""Object that contains a request's seed."""
NO_SEED = {"/sdapi/v1/options", "/sdapi/v1/png-info", "/v1/videos/{video_id}/remix", "/mcp"}
NAMES = sorted(EXAMPLE_REQUESTS.keys() - NO_SEED)


def with_seed(name: str) -> ExampleRequest:
    example = EXAMPLE_REQUESTS[name]
    if example.json is None:
        return replace(example, form={**example.form, "seed": str(SEED)})
    if inside := INSIDE.get(name):
        return replace(
            example, json={**example.json, inside: {**example.json[inside], "seed": SEED}}
        )
    return replace(example, json={**example.json, "seed": SEED})


@pytest.fixture
async def pool(
    request: pytest.FixtureRequest, queue: Queue, store: Store
) -> AsyncIterator[StandIn]:
    params = getattr(request.node, "callspec", None)
    async with StandIn(queue, store, spec_of(params.params["name"] if params else "")) as pool:
        yield pool


async def send(http: httpx.AsyncClient, example: ExampleRequest) -> httpx.Response:
    if example.json is not None:
        return await http.post(example.path, json=example.json)
    files = {name: ("a.png", data) for name, data in example.files.items()}
    return await http.post(example.path, data=example.form, files=files)


@pytest.mark.parametrize("name", NAMES)
async def test_the_header_has_them(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    answer = await send(http, with_seed(name))
    assert answer.status_code < 300, answer.text
    assert answer.headers[NAME].startswith("seed: ") and "that of 7" in answer.headers[NAME]


@pytest.mark.parametrize("name", ["/sdapi/v1/txt2img"])
async def test_no_header_without_warnings(
    http: httpx.AsyncClient, pool: StandIn, name: str
) -> None:
    assert NAME not in (await send(http, EXAMPLE_REQUESTS[name])).headers


async def test_agents_get_them_in_the_result(http: httpx.AsyncClient, pool: StandIn) -> None:
    call: dict[str, Any] = {"name": "generate_image", "arguments": {"prompt": "a", "seed": SEED}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    accept = {"Accept": "application/json, text/event-stream"}
    answer = await http.post("/mcp", json=message, headers=accept)
    assert '"field": "seed"' in answer.text.replace('\\"', '"')


async def test_later_reads_have_them_too(http: httpx.AsyncClient, pool: StandIn) -> None:
    body = {"prompt": "a", "seed": SEED}
    queued = (await http.post(f"/fal/queue/{MODEL}", json=body)).json()
    await http.get(f"/v1/jobs/{queued['request_id']}/events")
    predicted = f"/v1/predictions/{queued['request_id']}"
    for url in (queued["status_url"], queued["response_url"], predicted):
        answer = await http.get(url)
        assert answer.status_code == 200 and NAME in answer.headers, answer.text


def test_the_header_is_one_short_line_of_ascii() -> None:
    warnings = [FieldWarning(field="größe\r\nX-Evil: 1", message="x" * MAX_CHARS)] * 2
    (value,) = warning_header(warnings).values()
    assert value.isascii() and value.isprintable() and len(value) == MAX_CHARS
    assert warning_header([]) == {}
