"""No message of a library reaches a client of this API; the compatible endpoints' walk is in
`test_endpoint_fuzz.py`."""

from __future__ import annotations

import base64
import json
from itertools import product
from typing import Any

import httpx
import pytest

from models.spec.type_messages import type_message
from service.schemas.request import ContinueRequest, GenerateRequest
from tests.service.library_phrases import PHRASES, library_phrases
from tests.service.standin import MODEL, StandIn, picture

JSON = {"Content-Type": "application/json"}
WRONG: list[Any] = [
    *(None, True, -1, 1.5, 2**70, 1e308, "", "x", "\0", "x" * 5000, [], [[]], [None], {}),
    *({"name": 1}, {"name": {}}, {"url": "http://[::"}, {"url": "http://a:99999/"}),
    *("http://[", "data:image/png;base64,A", base64.b64encode(picture()[:60]).decode()),
]
BODIES = {
    "nothing": b"",
    "UTF-16": "{}".encode("utf-16"),
    "half a mark": b"\xef\xbb",
    "two marks": b"\xef\xbb\xbf" * 2 + b"{}",
    "no value": b'{"prompt": }',
    "no quotes": b"{prompt: 1}",
    "single quotes": b"{'prompt': 1}",
    "no colon": b'{"prompt" 1}',
    "no comma": b'{"prompt": "a" "b": 1}',
    "a last comma": b'{"prompt": "a",}',
    "a last comma of a list": b'{"sigmas": [1,]}',
    "no end": b'{"prompt": "a',
    "a line end": b'{"prompt": "a\n"}',
    "an escape": b'{"prompt": "\\q"}',
    "half an escape": b'{"prompt": "\\u12"}',
    "no UTF-8": b'{"prompt": "\xff"}',
    "two objects": b'{"prompt": "a"} {}',
    "a list": b"[]",
    "a word": b"hello",
}


async def test_wrong_values(http: httpx.AsyncClient, pool: StandIn) -> None:
    for field, value in product(sorted(GenerateRequest.model_fields), WRONG):
        body = {"model": MODEL, "prompt": "a cat", field: value}
        answer = await http.post("/v1/generate", content=json.dumps(body), headers=JSON)
        assert answer.status_code < 500 and not library_phrases(answer.text), answer.text


async def test_wrong_values_of_a_continuation(http: httpx.AsyncClient, pool: StandIn) -> None:
    job = (await http.post("/v1/generate", json={"model": MODEL, "prompt": "a"})).json()
    path = f"/v1/jobs/{job['id']}/continue"
    for field, value in product(ContinueRequest.model_fields, WRONG):
        answer = await http.post(path, content=json.dumps({field: value}), headers=JSON)
        assert answer.status_code < 500 and not library_phrases(answer.text), answer.text


PATHS = (
    *("/v1/generate", "/v1/verify", "/v1/images/generations", "/v1/chat/completions"),
    *("/v1/responses", "/v1/videos", "/v1/videos/generations", "/v1/predictions", "/v1/batches"),
    *(f"/hf/{MODEL}", f"/fal/run/{MODEL}", "/sdapi/v1/txt2img", "/sdapi/v1/options", "/mcp"),
)


async def test_broken_bodies(http: httpx.AsyncClient, pool: StandIn) -> None:
    for path, body in product(PATHS, BODIES.values()):
        answer = await http.post(path, content=body, headers=JSON)
        assert 400 <= answer.status_code < 500, answer.text
        assert not library_phrases(answer.text), answer.text


MESSAGES = (
    {"jsonrpc": "2.0"},
    {"jsonrpc": "1.0", "id": 1, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": {}, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": 1, "method": 7},
    {"jsonrpc": "2.0", "id": 1, "method": "unknown/method"},
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call"},
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 7}},
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": 7}},
    {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": 7}},
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}},
)


async def test_wrong_messages_of_mcp(http: httpx.AsyncClient, pool: StandIn) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    for message in MESSAGES:
        answer = await http.post("/mcp", json=message, headers=accept)
        assert answer.status_code < 500 and not library_phrases(answer.text), answer.text


WRONG_PARAMETERS = (
    *("/v1/jobs?limit=x", "/v1/jobs?limit=0", "/v1/jobs?limit=1.5", "/v1/jobs?state=x"),
    *("/v1/jobs/x/outputs/y", "/links/x/y?expires=z&signature=", "/v1/videos?limit=x"),
    *("/v1/videos?order=x", "/v1/files?limit=x", "/v1/batches?limit=x", "/healthz?only=x"),
)


async def test_wrong_parameters(http: httpx.AsyncClient) -> None:
    for path in WRONG_PARAMETERS:
        answer = await http.get(path)
        assert 400 <= answer.status_code < 500, answer.text
        assert not library_phrases(answer.text), answer.text


FORM_PATHS = ("/v1/images/edits", "/v1/loras", "/v1/files", "/v1/videos")
FORMS = (
    *(b"", b"x", b"--b\r\n\0: x\r\n\r\n", b"--b\rx", b"--b\r\nX\r\n\r\n"),
    b"--b\r\n: \r\n\r\n",
    b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\r\n--b--',
)


async def test_broken_forms(http: httpx.AsyncClient, pool: StandIn) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    for path, form in product(FORM_PATHS, FORMS):
        answer = await http.post(path, content=form, headers=headers)
        assert 400 <= answer.status_code < 500, answer.text
        assert not library_phrases(answer.text), answer.text


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        (f"/fal/run/{MODEL}", {"image_size": 7}, {"image_size"}),
        (
            f"/fal/run/{MODEL}",
            {"image_size": {"width": "x"}},
            {"image_size.width", "image_size.height"},
        ),
        (f"/fal/run/{MODEL}", {"scheduler": [7]}, {"scheduler"}),
        (f"/fal/run/{MODEL}", {"loras": [7]}, {"loras.0"}),
        (f"/fal/run/{MODEL}", {"loras": [{"path": 7}]}, {"loras.0.path"}),
        ("/v1/predictions", {"version": MODEL, "input": {"scheduler": 7}}, {"input.scheduler"}),
        ("/v1/responses", {"input": 7, "tools": [{"type": "image_generation"}]}, {"input"}),
    ],
)
async def test_fields_of_several_types_have_plain_paths(
    http: httpx.AsyncClient, pool: StandIn, path: str, body: dict[str, Any], fields: set[str]
) -> None:
    answer = (await http.post(path, json={"prompt": "a", **body})).json()
    message = answer.get("detail") or answer["error"]["message"]
    assert {part.partition(": ")[0] for part in message.split("; ")} >= fields, message
    assert "[" not in message and "Fal" not in message


def test_a_boundary_of_any_length_is_described_in_own_words() -> None:
    assert library_phrases("the form is invalid: Boundary length 300 exceeds") == [
        "Boundary length"
    ]


def test_unknown_types_of_errors_have_a_message() -> None:
    message = type_message({"type": "a_new_type", "msg": "Input should be new"})
    assert not any(phrase in message for phrase in PHRASES)
