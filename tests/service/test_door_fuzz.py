"""Broken and hostile requests at every door: refused in its own form, and nothing is queued."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.routing import DOORS
from service.settings.settings import Settings
from tests.hostile_images import bomb
from tests.service.doors import ASKED, PNG, Asked, spec_of, with_a_video
from tests.service.standin import VIDEO, StandIn

BOUNDARY = "b"
JSONS = {name: asked for name, asked in ASKED.items() if asked.json is not None}
FORMS = {name: asked for name, asked in ASKED.items() if asked.json is None}
TRIED_ELSEWHERE = {"/v1/files", "/v1/batches"}
"""Any file is taken, and read when its batch begins: `tests/service/batches` breaks them."""
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
    """Paths of all that a JSON value holds, and of one name more in each object."""
    if isinstance(value, dict):
        yield ("unheard_of",)
        for name, one in value.items():
            yield (name,)
            yield from ((name, *rest) for rest in places(one))
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield (index,)
            yield from ((index, *rest) for rest in places(one))


def put(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """A copy of a JSON value with another one at a path."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    inner = value.get(path[0]) if isinstance(value, dict) else value[path[0]]
    copy[path[0]] = put(inner, path[1:], new)
    return copy


def form_of(asked: Asked) -> bytes:
    """The body of a form."""
    lines = []
    for name, text in asked.form.items():
        lines.append(f'Content-Disposition: form-data; name="{name}"\r\n\r\n{text}'.encode())
    for name, data in asked.files.items():
        head = f'Content-Disposition: form-data; name="{name}"; filename="a.png"\r\n\r\n'
        lines.append(head.encode() + data)
    start = b"--%s\r\n" % BOUNDARY.encode()
    return b"\r\n".join(start + line for line in lines) + b"\r\n--%s--\r\n" % BOUNDARY.encode()


def is_told(answer: httpx.Response) -> bool:
    """Whether an answer is none, or an error that says something, of the client's making."""
    if answer.status_code < 400:
        return True
    return answer.status_code < 500 and bool(answer.json())


@pytest.fixture
def settings(settings: Settings) -> Settings:
    server = settings.server.model_copy(update={"allow_image_urls": True})
    return settings.model_copy(update={"server": server})


@pytest.fixture
async def pool(
    request: pytest.FixtureRequest, queue: Queue, store: Store
) -> AsyncIterator[StandIn]:
    """Of the model that the request is for."""
    spec = spec_of(request.node.callspec.params["name"])
    async with StandIn(queue, store, spec) as pool:
        if spec is VIDEO:
            await with_a_video(pool)
        yield pool


def test_every_operation_with_a_body_is_attacked(app: FastAPI) -> None:
    paths = {route.path_format for door in DOORS for route in door.router.routes}
    with_body = {
        path
        for path, methods in app.openapi()["paths"].items()
        if path in paths
        for operation in methods.values()
        if "requestBody" in operation
    }
    assert with_body == {name.split(" ")[0] for name in ASKED} | TRIED_ELSEWHERE


@pytest.mark.parametrize("name", ASKED)
async def test_what_is_right_is_taken(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    asked = ASKED[name]
    answer = await http.post(asked.path, **_sent(asked))
    assert answer.status_code < 300, answer.text


def _sent(asked: Asked) -> dict[str, Any]:
    if asked.json is not None:
        return {"json": asked.json}
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return {"content": form_of(asked), "headers": headers}


@pytest.mark.parametrize("name", JSONS)
async def test_wrong_values_are_told(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    asked = JSONS[name]
    for path, (what, value) in itertools.product(places(asked.json), VALUES.items()):
        content = json.dumps(put(asked.json, path, value))
        headers = {"Content-Type": "application/json"}
        answer = await http.post(asked.path, content=content, headers=headers)
        assert is_told(answer), (path, what, answer.status_code, answer.text)


@pytest.mark.parametrize("name", JSONS)
async def test_broken_json_is_told(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    asked = JSONS[name]
    whole = json.dumps(asked.json)
    bodies = [whole[:cut] for cut in range(0, len(whole), max(1, len(whole) // 40))]
    for body in [*bodies, "[]", "1", '"a"', "{", whole + "}", "[" * 5000, '{"a":' * 5000]:
        answer = await http.post(
            asked.path, content=body, headers={"Content-Type": "application/json"}
        )
        assert 400 <= answer.status_code < 500 and answer.json(), (body[:80], answer.text)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await http.post(asked.path, content=whole, headers={"Content-Type": kind})
        assert 400 <= answer.status_code < 500 and answer.json(), (kind, answer.text)
    assert not pool.seen


@pytest.mark.parametrize("name", FORMS)
async def test_wrong_parts_are_told(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    asked = FORMS[name]
    texts = {what: value for what, value in VALUES.items() if isinstance(value, str)}
    for part, (what, text) in itertools.product([*asked.form, "unheard_of"], texts.items()):
        body = form_of(Asked(asked.path, None, asked.form | {part: "PUT"}, asked.files))
        body = body.replace(b"\r\n\r\nPUT", b"\r\n\r\n" + text.encode("utf-8", "surrogatepass"))
        answer = await http.post(asked.path, content=body, headers=_sent(asked)["headers"])
        assert is_told(answer), (part, what, answer.status_code, answer.text)
    for part, data in itertools.product(asked.files, [b"", b"none", PNG[:80], bomb(50_000)]):
        changed = Asked(asked.path, None, asked.form, asked.files | {part: data})
        answer = await http.post(asked.path, **_sent(changed))
        assert 400 <= answer.status_code < 500 and answer.json(), (part, data[:9], answer.text)


@pytest.mark.parametrize("name", FORMS)
async def test_broken_forms_are_told(http: httpx.AsyncClient, pool: StandIn, name: str) -> None:
    asked = FORMS[name]
    whole, headers = form_of(asked), _sent(asked)["headers"]
    bodies = [whole[:cut] for cut in range(0, len(whole) - 8, max(1, len(whole) // 40))]
    bodies += [
        whole.replace(b"form-data", b"attachment"),
        whole.replace(b'name="', b'nom="'),
        whole.replace(b"Content-Disposition", b"X" * 100_000),
        whole.replace(b"\r\n", b"\n"),
        whole[: whole.rindex(b"--b--")] + whole,
    ]
    for body in bodies:
        answer = await http.post(asked.path, content=body, headers=headers)
        assert 400 <= answer.status_code < 500 and answer.json(), (body[:80], answer.text)
    for kind in ("application/json", "multipart/form-data", "multipart/form-data; boundary=c"):
        answer = await http.post(asked.path, content=whole, headers={"Content-Type": kind})
        assert 400 <= answer.status_code < 500 and answer.json(), (kind, answer.text)
    assert not pool.seen


@pytest.mark.parametrize("name", ASKED)
async def test_a_large_body_is_too_large(
    http: httpx.AsyncClient, settings: Settings, pool: StandIn, name: str
) -> None:
    asked = ASKED[name]
    most = 2 * settings.limits.max_body_bytes
    if asked.json is not None:
        answer = await http.post(asked.path, json=asked.json | {"a": "x" * most})
    else:
        files = {part: b"\0" * most for part in asked.files}
        answer = await http.post(asked.path, **_sent(Asked(asked.path, None, asked.form, files)))
    assert answer.status_code == 413 and answer.json(), answer.text
    assert not pool.seen
