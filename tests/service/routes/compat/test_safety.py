"""Rejections by the safety hook in each compatible endpoint's error format, before and after the
job."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.jobs.model.job import JobError
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.safety import SafetySettings
from service.settings.settings import Settings
from tests.safety_hook import HookProcess, hook_process
from tests.service.compatible_requests import EXAMPLE_REQUESTS, IMAGE, PNG, spec_of
from tests.service.eventually import eventually
from tests.service.standin import MODEL, StandIn

CODE, REASON = "refused_by_safety", "it shows a secret"
POLICY = "content_policy_violation"
"""Error code of OpenAI's and fal's clients."""
AFTER = JobError(code=CODE, message=f"this server's safety check refuses the output: {REASON}")
READ: dict[str, tuple[int, Callable[[Any], tuple[str, str]]]] = {
    "/v1/images/generations": (400, lambda body: (body["error"]["code"], body["error"]["message"])),
    "/v1/videos/generations": (400, lambda body: (body["error"]["code"], body["error"]["message"])),
    "/hf/{model}": (422, lambda body: (body["code"], body["error"])),
    "/sdapi/v1/txt2img": (422, lambda body: (body["error"], body["detail"])),
    "/fal/run/{app}": (422, lambda body: (body["error_type"], body["detail"])),
}
"""Endpoints that wait for their job: status of a rejection, and reader of its code and message."""
LATER = {
    "/v1/videos": (400, lambda body: (body["error"]["code"], body["error"]["message"])),
    "/v1/predictions": (422, lambda body: (body["error"]["code"], body["detail"])),
    "/fal/queue/{app}": READ["/fal/run/{app}"],
}
"""The same for endpoints whose job is polled."""


@pytest.fixture(scope="module")
def hook() -> Iterator[HookProcess]:
    with hook_process() as hook:
        yield hook


@pytest.fixture
def settings(settings: Settings, tmp_path: Path, hook: HookProcess) -> Settings:
    return settings.model_copy(update={"safety": SafetySettings(url=hook.url, timeout_s=5)})


@pytest.fixture
async def pool(
    request: pytest.FixtureRequest, queue: Queue, store: Store
) -> AsyncIterator[StandIn]:
    """Stand-in worker of the model that the endpoint's request uses."""
    callspec = getattr(request.node, "callspec", None)
    spec = spec_of(callspec.params.get("name", "") if callspec else "")
    async with StandIn(queue, store, spec) as pool:
        yield pool


def code_at(name: str) -> str:
    """Error code of a rejection at an endpoint."""
    return POLICY if name.startswith(("/v1/images", "/v1/videos", "/fal")) else CODE


def with_prompt(body: dict[str, Any], prompt: str) -> dict[str, Any]:
    """Copy of an endpoint's request with another prompt."""
    if "input" in body:
        return body | {"input": {"prompt": prompt}}
    return body | {"inputs" if "inputs" in body else "prompt": prompt}


async def send(http: httpx.AsyncClient, name: str, prompt: str, **more: Any) -> httpx.Response:
    example = EXAMPLE_REQUESTS[name]
    assert example.json is not None
    return await http.post(example.path, json=with_prompt(example.json, prompt) | more)


@pytest.mark.parametrize("name", [*READ, *LATER])
async def test_refused_prompt_returns_its_reason_and_creates_no_job(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue, name: str
) -> None:
    status, read = {**READ, **LATER}[name]
    answer = await send(http, name, "refuse")
    code, message = read(answer.json())
    assert (answer.status_code, code) == (status, code_at(name))
    assert REASON in message and await queue.list(limit=1) == []


@pytest.mark.parametrize("name", READ)
async def test_refused_pixels_are_client_errors(
    http: httpx.AsyncClient, pool: StandIn, name: str
) -> None:
    pool.failure = AFTER
    status, read = READ[name]
    answer = await send(http, name, "a hat")
    assert (answer.status_code, *read(answer.json())) == (status, code_at(name), AFTER.message)
    assert answer.headers.get("x-should-retry", "false") == "false"


async def test_an_edit_and_a_stream_are_refused(http: httpx.AsyncClient, pool: StandIn) -> None:
    file = {"image": ("a.png", PNG, "image/png")}
    edit = await http.post("/v1/images/edits", data={"prompt": "refuse"}, files=file)
    assert (edit.status_code, edit.json()["error"]["code"]) == (400, POLICY)
    before = await send(http, "/v1/images/generations", "refuse", stream=True)
    assert (before.status_code, before.json()["error"]["code"]) == (400, POLICY)
    pool.failure = AFTER
    after = await send(http, "/v1/images/generations", "a hat", stream=True)
    event, data = after.text.strip().splitlines()
    assert (after.status_code, event) == (200, "event: error")
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == POLICY


@pytest.mark.parametrize("name", ["/v1/videos"])
async def test_a_refused_video_has_failed(
    http: httpx.AsyncClient, pool: StandIn, name: str
) -> None:
    pool.failure = AFTER
    made = (await send(http, name, "a hat")).json()

    async def has_failed() -> bool:
        return (await http.get(f"{name}/{made['id']}")).json()["status"] == "failed"

    await eventually(has_failed)
    video = (await http.get(f"{name}/{made['id']}")).json()
    assert video["error"] == {"code": POLICY, "message": AFTER.message}
    content = await http.get(f"{name}/{made['id']}/content")
    assert (content.status_code, content.json()["error"]["code"]) == (400, POLICY)


async def test_a_refused_prediction_has_failed(http: httpx.AsyncClient, pool: StandIn) -> None:
    pool.failure = AFTER
    body = {"version": MODEL, "input": {"prompt": "a hat"}}
    made = (await http.post("/v1/predictions", json=body, headers={"Prefer": "wait"})).json()
    assert (made["status"], made["error"], made["output"]) == ("failed", AFTER.message, None)


async def test_a_refused_request_of_fals_has_no_result(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    pool.failure = AFTER
    made = (await send(http, "/fal/queue/{app}", "a hat", image_url=IMAGE)).json()

    async def is_done() -> bool:
        return (await http.get(made["status_url"])).json()["status"] == "COMPLETED"

    await eventually(is_done)
    status = (await http.get(made["status_url"])).json()
    assert (status["error_type"], status["error"]) == (POLICY, AFTER.message)
    result = await http.get(made["response_url"])
    assert (result.status_code, result.json()["error_type"]) == (422, POLICY)


@pytest.mark.parametrize(("prompt", "failure"), [("refuse", None), ("a hat", AFTER)])
async def test_agent_gets_the_reason(
    http: httpx.AsyncClient, pool: StandIn, prompt: str, failure: JobError | None
) -> None:
    pool.failure = failure
    call = {"name": "generate_image", "arguments": {"prompt": prompt}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    accept = {"Accept": "application/json, text/event-stream"}
    answer = await http.post("/mcp", json=message, headers=accept)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    result = json.loads(next(line for line in lines if line.startswith("{")))["result"]
    assert result["isError"] and REASON in result["content"][0]["text"]
