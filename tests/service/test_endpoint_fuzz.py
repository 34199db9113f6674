"""Malformed and hostile requests to every compatible endpoint: rejected in its error format, and no
job is queued."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.jobs.model.job import Job
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.routing import COMPATIBLE_ENDPOINTS
from service.settings.settings import Settings
from tests.hostile_images import bomb
from tests.service.compatible_requests import (
    EXAMPLE_REQUESTS,
    PNG,
    ExampleRequest,
    create_video_job,
    spec_of,
)
from tests.service.concurrent_client import PROMPT
from tests.service.harmless import harmless, neighbour_of
from tests.service.library_phrases import library_phrases
from tests.service.standin import VIDEO, StandIn

BOUNDARY = "b"
JSONS = {name: example for name, example in EXAMPLE_REQUESTS.items() if example.json is not None}
FORMS = {name: example for name, example in EXAMPLE_REQUESTS.items() if example.json is None}
TRIED_ELSEWHERE = {"/v1/files", "/v1/batches"}
"""Accepts any file, and parses it when its batch begins: `tests/service/batches` tests malformed
files."""
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "a negative number": -1,
    "a large number": 2**70,
    "a larger number": 1e308,
    "an empty text": "",
    "a control character": "\0",
    "half a character": "\ud800",
    "a long text": "x" * 100_000,
    "a list": [],
    "a list of lists": [[[]]],
    "an object": {},
    "an object of a name": {"name": {}},
    "no base64": "data:image/png;base64,A",
    "no image": base64.b64encode(b"none").decode(),
    "half an image": base64.b64encode(PNG[: len(PNG) // 2]).decode(),
    "a bomb": base64.b64encode(bomb(50_000)).decode(),
    "an address": "http://127.0.0.1:1/a.png",
    "a file's address": "file:///etc/passwd",
}


def places(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all values in a JSON value, and of one unknown name in each object."""
    if isinstance(value, dict):
        yield ("unheard_of",)
        for name, inner in value.items():
            yield (name,)
            yield from ((name, *rest) for rest in places(inner))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield (index,)
            yield from ((index, *rest) for rest in places(inner))


def put(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """Copy of a JSON value with `new` at the given path."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    inner = value.get(path[0]) if isinstance(value, dict) else value[path[0]]
    copy[path[0]] = put(inner, path[1:], new)
    return copy


def form_of(example: ExampleRequest) -> bytes:
    """Encode a request's form as a multipart body."""
    lines = []
    for name, text in example.form.items():
        lines.append(f'Content-Disposition: form-data; name="{name}"\r\n\r\n{text}'.encode())
    for name, data in example.files.items():
        head = f'Content-Disposition: form-data; name="{name}"; filename="a.png"\r\n\r\n'
        lines.append(head.encode() + data)
    start = b"--%s\r\n" % BOUNDARY.encode()
    return b"\r\n".join(start + line for line in lines) + b"\r\n--%s--\r\n" % BOUNDARY.encode()


def is_handled(answer: httpx.Response) -> bool:
    """Return whether the response is a success, or a client error with a JSON body and no text of a
    library."""
    if answer.status_code < 400:
        return True
    assert not library_phrases(answer.text), answer.text
    return answer.status_code < 500 and bool(answer.json())


@pytest.fixture
def settings(settings: Settings) -> Settings:
    server = settings.server.model_copy(update={"allow_image_urls": True})
    return settings.model_copy(update={"server": server})


@pytest.fixture
async def pool(
    request: pytest.FixtureRequest, queue: Queue, store: Store
) -> AsyncIterator[StandIn]:
    """Stand-in worker of the model that the request names."""
    spec = spec_of(request.node.callspec.params["name"])
    async with StandIn(queue, store, spec) as pool:
        if spec is VIDEO:
            await create_video_job(pool)
        yield pool


@pytest.fixture
async def http(
    app: FastAPI, http: httpx.AsyncClient, pool: StandIn
) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client of an attacker."""
    async with neighbour_of(app) as neighbour, harmless(neighbour, pool.spec.name):
        yield http


def attackers_jobs(pool: StandIn) -> list[Job]:
    return [job for job in pool.received if job.request["prompt"] != PROMPT]


def test_every_operation_with_a_body_is_attacked(app: FastAPI) -> None:
    routes = [route for door in COMPATIBLE_ENDPOINTS for route in door.router.routes]
    paths = {route.path_format for route in routes if isinstance(route, APIRoute)}
    with_body = {
        path
        for path, methods in app.openapi()["paths"].items()
        if path in paths
        for operation in methods.values()
        if "requestBody" in operation
    }
    assert with_body == {name.split(" ")[0] for name in EXAMPLE_REQUESTS} | TRIED_ELSEWHERE


@pytest.mark.parametrize("name", EXAMPLE_REQUESTS)
async def test_valid_requests_are_accepted(
    http: httpx.AsyncClient, pool: StandIn, name: str
) -> None:
    example = EXAMPLE_REQUESTS[name]
    answer = await http.post(example.path, **_arguments(example))
    assert answer.status_code < 300, answer.text


def _arguments(example: ExampleRequest) -> dict[str, Any]:
    if example.json is not None:
        return {"json": example.json}
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return {"content": form_of(example), "headers": headers}


@pytest.mark.parametrize("name", JSONS)
async def test_wrong_values_are_rejected(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    example = JSONS[name]
    for path, (label, value) in itertools.product(places(example.json), VALUES.items()):
        content = json.dumps(put(example.json, path, value))
        headers = {"Content-Type": "application/json"}
        answer = await http.post(example.path, content=content, headers=headers)
        assert is_handled(answer), (path, label, answer.status_code, answer.text)


@pytest.mark.parametrize("name", JSONS)
async def test_broken_json_is_rejected(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    example = JSONS[name]
    valid = json.dumps(example.json)
    bodies = [valid[:cut] for cut in range(0, len(valid), max(1, len(valid) // 40))]
    for body in [*bodies, "[]", "1", '"a"', "{", valid + "}", "[" * 5000, '{"a":' * 5000]:
        answer = await http.post(
            example.path, content=body, headers={"Content-Type": "application/json"}
        )
        assert 400 <= answer.status_code < 500 and answer.json(), (body[:80], answer.text)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await http.post(example.path, content=valid, headers={"Content-Type": kind})
        assert 400 <= answer.status_code < 500 and answer.json(), (kind, answer.text)
    assert not attackers_jobs(pool)


@pytest.mark.parametrize("name", FORMS)
async def test_wrong_parts_are_rejected(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    example = FORMS[name]
    texts = {label: value for label, value in VALUES.items() if isinstance(value, str)}
    for part, (label, text) in itertools.product([*example.form, "unheard_of"], texts.items()):
        body = form_of(
            ExampleRequest(example.path, None, example.form | {part: "PUT"}, example.files)
        )
        body = body.replace(b"\r\n\r\nPUT", b"\r\n\r\n" + text.encode("utf-8", "surrogatepass"))
        answer = await http.post(example.path, content=body, headers=_arguments(example)["headers"])
        assert is_handled(answer), (part, label, answer.status_code, answer.text)
    for part, data in itertools.product(example.files, [b"", b"none", PNG[:80], bomb(50_000)]):
        changed = ExampleRequest(example.path, None, example.form, example.files | {part: data})
        answer = await http.post(example.path, **_arguments(changed))
        assert 400 <= answer.status_code < 500 and answer.json(), (part, data[:9], answer.text)


@pytest.mark.parametrize("name", FORMS)
async def test_broken_forms_are_rejected(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    example = FORMS[name]
    valid, headers = form_of(example), _arguments(example)["headers"]
    bodies = [valid[:cut] for cut in range(0, len(valid) - 8, max(1, len(valid) // 40))]
    bodies += [
        valid.replace(b"form-data", b"attachment"),
        valid.replace(b'name="', b'nom="'),
        valid.replace(b"Content-Disposition", b"X" * 100_000),
        valid.replace(b"\r\n", b"\n"),
        valid[: valid.rindex(b"--b--")] + valid,
    ]
    for body in bodies:
        answer = await http.post(example.path, content=body, headers=headers)
        assert 400 <= answer.status_code < 500 and answer.json(), (body[:80], answer.text)
    for kind in ("application/json", "multipart/form-data", "multipart/form-data; boundary=c"):
        answer = await http.post(example.path, content=valid, headers={"Content-Type": kind})
        assert 400 <= answer.status_code < 500 and answer.json(), (kind, answer.text)
    assert not attackers_jobs(pool)


@pytest.mark.parametrize("name", EXAMPLE_REQUESTS)
async def test_a_large_body_is_too_large(
    http: httpx.AsyncClient, settings: Settings, pool: StandIn, name: str
) -> None:
    example = EXAMPLE_REQUESTS[name]
    most = 2 * settings.limits.max_body_bytes
    if example.json is not None:
        answer = await http.post(example.path, json=example.json | {"a": "x" * most})
    else:
        files = {part: b"\0" * most for part in example.files}
        answer = await http.post(
            example.path, **_arguments(ExampleRequest(example.path, None, example.form, files))
        )
    assert answer.status_code == 413 and answer.json(), answer.text
    assert not attackers_jobs(pool)
