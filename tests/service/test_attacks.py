"""Hostile input against every limit: the response is problem+json, and the server still works."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.settings.settings import Settings
from tests.hostile_images import animation, bomb, jpeg_of_scans, text_bomb, within
from tests.service.concurrent_client import ADDRESS
from tests.service.harmless import harmless, neighbour_of
from tests.service.standin import MODEL, StandIn, picture

JSON = {"Content-Type": "application/json"}
CAT = {"prompt": "a cat", "model": MODEL}
PIXEL = base64.b64encode(picture("PNG", (1, 1))).decode()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def is_problem(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    assert answer.status_code in statuses, answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == answer.status_code and problem["title"] and problem["detail"]
    assert len(answer.content) < 10_000, "the response repeats the attack"
    return problem


@pytest.fixture
async def target(wire: httpx.AsyncClient, pool: StandIn) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client over sockets; afterwards the server must still serve a plain request."""
    transport = httpx.AsyncHTTPTransport(local_address=ADDRESS)
    async with (
        httpx.AsyncClient(transport=transport, base_url=wire.base_url, timeout=30) as neighbour,
        harmless(neighbour),
    ):
        yield wire
        await still_serves(wire)


@pytest.fixture
async def near(
    app: FastAPI, http: httpx.AsyncClient, pool: StandIn
) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client without sockets; afterwards the app must still serve a plain request."""
    async with neighbour_of(app) as neighbour, harmless(neighbour):
        yield http
        await still_serves(http)


async def still_serves(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})
    assert answer.status_code == 200 and answer.json()["state"] == "succeeded"


BODIES = {
    "nothing": b"",
    "no JSON": b"prompt=cat",
    "half a JSON": b'{"prompt": "a cat"',
    "a list": b"[]",
    "null": b"null",
    "a number": b"1",
    "no UTF-8": b'{"prompt": "\xff\xfe"}',
    "another encoding": '{"prompt": "a cat"}'.encode("utf-16"),
    "a repeated key": b'{"prompt": "a", "prompt": "b"}',
    "NaN": b'{"prompt": "a", "guidance_scale": NaN}',
    "infinity": b'{"prompt": "a", "guidance_scale": -Infinity}',
    "a very long number": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 30_000 + b"1" + b"}" * 30_000,
    "deep but closed": b'{"scheduler":' + b"[" * 500 + b"]" * 500 + b"}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_non_object_body_is_rejected(target: httpx.AsyncClient, body: bytes) -> None:
    is_problem(await target.post("/v1/generate", content=body, headers=JSON), 400)


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown field": ({"wdth": 1}, "wdth"),
    "half a character as a field": ({"\ud800": 1}, "body"),
    "thousands of unknown fields": ({f"f{i}": i for i in range(5000)}, "f0"),
    "no prompt": ({"prompt": None}, "prompt"),
    "a number as prompt": ({"prompt": 1}, "prompt"),
    "a NUL in the prompt": ({"prompt": "a\0b"}, "prompt"),
    "half a character in the prompt": ({"prompt": "\ud83d"}, "prompt"),
    "a long prompt": ({"prompt": "x" * 10_001}, "prompt"),
    "a long second prompt": ({"prompt_2": "x" * 10_001}, "prompt_2"),
    "false as a number": ({"num_images": False}, "num_images"),
    "text as a number": ({"width": "96"}, "width"),
    "half a pixel": ({"width": 96.5}, "width"),
    "no width": ({"width": 0}, "width"),
    "a negative width": ({"width": -16}, "width"),
    "a narrow image": ({"width": 16}, "width"),
    "a wide image": ({"width": 272}, "width"),
    "a width that does not divide": ({"width": 97}, "width"),
    "too many pixels": ({"width": 256, "height": 256}, "width"),
    "a gigantic width": ({"width": 10**300}, "width"),
    "many steps": ({"num_inference_steps": 51}, "num_inference_steps"),
    "no steps": ({"num_inference_steps": 0}, "num_inference_steps"),
    "many images": ({"num_images": 5}, "num_images"),
    "a long sequence": ({"max_sequence_length": 129}, "max_sequence_length"),
    "a negative seed": ({"seed": -1}, "seed"),
    "a large seed": ({"seed": 2**64}, "seed"),
    "a seed that runs over": ({"seed": 2**64 - 1, "num_images": 2}, "seed"),
    "an overflowing number": ({"guidance_scale": 10**400}, "guidance_scale"),
    "a large guidance": ({"guidance_scale": 1e9}, "guidance_scale"),
    "strength without an image": ({"strength": 0.5}, "strength"),
    "too much strength": ({"image": PIXEL, "strength": 1.5}, "strength"),
    "no strength": ({"image": PIXEL, "strength": 0}, "strength"),
    "no step left": ({"image": PIXEL, "strength": 1e-30}, "strength"),
    "rising sigmas": ({"sigmas": [0.1, 0.5]}, "sigmas"),
    "many sigmas": ({"sigmas": [1 - i / 100 for i in range(60)]}, "num_inference_steps"),
    "sigmas and other steps": ({"sigmas": [1.0], "num_inference_steps": 2}, "sigmas"),
    "a field of another family": ({"num_frames": 5}, "num_frames"),
    "a mask": ({"image": PIXEL, "mask_image": PIXEL}, "mask_image"),
    "loras": ({"loras": [{"name": "x"}]}, "loras"),
    "a scheduler": ({"scheduler": {"name": "euler", "shift": 3.0}}, "scheduler"),
    "a scheduler with depth": ({"scheduler": {"name": "euler", "x": {}}}, "scheduler.x"),
    "an unknown format": ({"output": {"format": "tiff"}}, "output.format"),
    "a video format": ({"output": {"format": "mp4"}}, "output.format"),
    "too much quality": ({"output": {"quality": 101}}, "output.quality"),
    "an unknown output": ({"output": {"codec": "x"}}, "output.codec"),
    "an unknown priority": ({"priority": "urgent"}, "priority"),
    "a deadline that is over": ({"deadline_s": 0}, "deadline_s"),
    "a deadline without end": ({"deadline_s": 1e300}, "deadline_s"),
    "much metadata": ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    "long metadata": ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    "metadata that is no text": ({"metadata": {"a": 1}}, "metadata.a"),
    "an address as image": ({"image": "http://127.0.0.1/cat.png"}, "image"),
    "no image": ({"image": ""}, "image"),
    "no base64": ({"image": "not an image!"}, "image"),
    "letters beyond base64": ({"image": "картинка"}, "image"),
    "cut base64": ({"image": PIXEL[:-1]}, "image"),
    "a data URI without base64": ({"image": "data:image/png,abc"}, "image"),
    "a data URI without data": ({"image": "data:image/png;base64,"}, "image"),
    "text as image": ({"image": encoded(b"GIF89a" + b"\0" * 100)}, "image"),
    "a cut image": ({"image": encoded(picture("PNG", (64, 64))[:-40])}, "image"),
    "an image that is too large": ({"image": encoded(picture("PNG", (400, 251)))}, "image"),
    "a bomb": ({"image": encoded(bomb(60_000))}, "image"),
    "an animation": ({"image": encoded(animation("WEBP", 2))}, "image"),
    "many scans": ({"image": encoded(jpeg_of_scans(1000, (300, 300)))}, "image"),
    "a script": ({"image": encoded(b"<svg xmlns='http://www.w3.org/2000/svg'/>")}, "image"),
}


@pytest.mark.parametrize(("fields", "named"), FIELDS.values(), ids=FIELDS.keys())
async def test_a_field_that_cannot_be_served(
    near: httpx.AsyncClient, fields: dict[str, Any], named: str
) -> None:
    await is_refused(near, fields, named)


@pytest.fixture(scope="module")
def comment_bomb() -> str:
    """An image file in base64, made before the attack is measured."""
    return encoded(within(picture("PNG", (32, 32)), text_bomb("zTXt")))


async def test_a_bomb_in_the_comment_of_an_image_is_skipped(
    comment_bomb: str, near: httpx.AsyncClient
) -> None:
    content = json.dumps(CAT | {"image": comment_bomb})
    answer = await near.post("/v1/generate", content=content, headers=JSON)
    assert answer.status_code == 202, answer.text


async def is_refused(near: httpx.AsyncClient, fields: dict[str, Any], named: str) -> None:
    content = json.dumps(CAT | fields)
    problem = is_problem(await near.post("/v1/generate", content=content, headers=JSON), 422)
    assert problem["errors"][0]["field"] == named
    assert problem["error"]["param"] == named
    assert len(problem["errors"]) <= 16


HEADERS = {
    "no type": ({"Content-Type": ""}, 415),
    "a form": ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    "another encoding": ({"Content-Type": "application/json; charset=latin-1"}, 415),
    "a compressed body": (JSON | {"Content-Encoding": "gzip"}, 415),
    "an empty key": (JSON | {"Idempotency-Key": ""}, 400),
    "a long key": (JSON | {"Idempotency-Key": "k" * 256}, 400),
    "an answer that there is not": (JSON | {"Accept": "text/html"}, 406),
}


@pytest.mark.parametrize(("headers", "status"), HEADERS.values(), ids=HEADERS.keys())
async def test_a_header_that_cannot_be_served(
    target: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    content = json.dumps(CAT)
    is_problem(await target.post("/v1/generate", content=content, headers=headers), status)


HARMLESS = {
    "a wait that is not a number": {"Prefer": "wait=soon"},
    "a wait without end": {"Prefer": "wait=999999999999999999999999"},
    "a strange quality": {"Accept": "*/*;q=abc, ;;;,,"},
    "a strange event": {"Last-Event-ID": "0-0 $ *" * 100},
}


@pytest.mark.parametrize("headers", HARMLESS.values(), ids=HARMLESS.keys())
async def test_a_strange_header_does_no_harm(
    target: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await target.post("/v1/generate", json=CAT, headers=headers)
    assert answer.status_code == 202


async def test_a_large_body_is_refused_by_its_length(target: httpx.AsyncClient) -> None:
    content = json.dumps(CAT | {"image": "A" * 300_000})
    is_problem(await target.post("/v1/generate", content=content, headers=JSON), 413)


async def test_a_large_body_is_refused_while_it_arrives(
    target: httpx.AsyncClient, settings: Settings
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(settings.limits.max_body_bytes // 10_000 + 5):
            yield b"x" * 10_000

    is_problem(await target.post("/v1/generate", content=endless(), headers=JSON), 413)


async def test_endless_body_is_cut_off(target: httpx.AsyncClient, settings: Settings) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 10_000
            yield b"x" * 10_000

    with contextlib.suppress(httpx.TransportError):  # the server may close the connection
        is_problem(await target.post("/v1/generate", content=endless(), headers=JSON), 413)
    assert sent < 100 * settings.limits.max_body_bytes


async def test_aborted_upload_is_not_an_error(target: httpx.AsyncClient) -> None:
    host, port = target.base_url.host, target.base_url.port
    _, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST /v1/generate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000\r\n\r\n{"
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/jobs/", 404),
        ("GET", "/v1/../../etc/passwd", 404),
        ("GET", "/v1/generate", 405),
        ("PUT", "/v1/generate", 405),
        ("DELETE", "/v1/models", 405),
        ("PATCH", "/v1/jobs", 405),
    ],
)
async def test_unknown_address(
    target: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await target.request(method, path)
    is_problem(answer, status)
    assert ("allow" in answer.headers) == (status == 405)


async def test_the_first_request_for_the_api_s_document(near: httpx.AsyncClient) -> None:
    assert (await near.get("/openapi.json")).status_code == 200


async def test_concurrent_invalid_images_are_rejected(target: httpx.AsyncClient) -> None:
    bodies = [CAT | {"image": encoded(bomb(50_000 + i))} for i in range(40)]
    answers = await asyncio.gather(*(target.post("/v1/generate", json=body) for body in bodies))
    for answer in answers:
        is_problem(answer, 422)
