"""Expensive request and response bodies against a real server process, which stays responsive."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors.problems import Problem
from service.http.inflight_limits import SharedLimit
from service.jobs.model.job import Output
from service.jobs.queue import Claim, Queue
from service.jobs.storage.object_store import Store
from tests.service.attacked import PAUSE_S, TIMEOUT_S, Attacked, attacked, is_closed, status_of
from tests.service.eventually import eventually
from tests.service.standin import MODEL, StandIn

MIB = 2**20
MAX_BYTES = 31 * MIB
"""Size of a body that is not rejected for its length alone."""
CAT = {"prompt": "a cat", "model": MODEL}
SIZE = 24 * MIB
CLIENTS = 40
INFLIGHT = 96 * MIB
PARTS: dict[str, tuple[bytes, bytes, bytes]] = {
    "numbers": (b'{"prompt": "a", "sigmas": [1', b",1", b"]}"),
    "empty objects": (b'{"prompt": "a", "loras": [{}', b",{}", b"]}"),
    "texts": (b'{"prompt": "a", "sigmas": ["a"', b',"a"', b"]}"),
    "long numbers": (b'{"prompt": "a", "sigmas": [1', b"," + b"9" * 500, b"]}"),
    "one number": (b'{"prompt": "a", "seed": 1', b"1", b"}"),
    "repeated names": (b'{"prompt": "a"', b',"a":1', b"}"),
    "lists in lists": (b'{"prompt": "a", "sigmas": ', b"[", b"}"),
    "blanks": (b'{"prompt": "a"', b" ", b"}"),
    "a long prompt": (b'{"prompt": "a', b"a", b'"}'),
    "a long prompt of escapes": (b'{"prompt": "a', b"\\ud83d\\ude00", b'"}'),
    "a long prompt of quotes": (b'{"prompt": "a', b'\\"', b'"}'),
    "a long name": (b'{"prompt": "a", "a', b"a", b'": 1}'),
    "a long format": (b'{"prompt": "a", "output": {"format": "a', b"a", b'"}}'),
    "an image": (b'{"prompt": "a", "image": "AAAA', b"AAAA", b'"}'),
    "an image of escapes": (b'{"prompt": "a", "image": "AAAA', b"\\u0041", b'"}'),
    "an image of percents": (b'{"prompt": "a", "image": "data:;base64,AAAA', b"%2B", b'"}'),
    "an image of line ends": (b'{"prompt": "a", "image": "AAAA', b"\\n", b'"}'),
}
"""Beginning, repeated part and end of each hostile body."""


@pytest.fixture(scope="module")
def server(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    settings = {
        "ATELIER_LIMITS__MAX_INFLIGHT_BYTES": str(INFLIGHT),
        "ATELIER_SERVER__BODY_S": "300",
        "ATELIER_SERVER__MAX_WAITING": "3",
        "ATELIER_SERVER__MODELS_AGE_S": "0",
    }
    with attacked(redis_url, tmp_path_factory.mktemp("server"), **settings) as server:
        yield server


def request(body: bytes, length: int | None = None) -> bytes:
    return (
        b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (length or len(body), body)
    )


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS.keys())
def test_large_valid_body_does_not_block_others(
    server: Attacked, parts: tuple[bytes, bytes, bytes]
) -> None:
    begin, repeated, end = parts
    body = begin + repeated * ((MAX_BYTES - len(begin) - len(end)) // len(repeated)) + end
    statuses = []

    def attack() -> None:
        statuses.append(status_of(server.send(request(body))))

    server.stays_well(attack, grows=5 * MAX_BYTES)
    assert set(statuses) <= {400, 404, 422, 503}, statuses


def test_thousands_of_wrong_fields_do_not_block_others(server: Attacked) -> None:
    wrong: dict[str, Any] = {f"f{number}": [] for number in range(6000)}
    bodies = [
        {"prompt": "a", **wrong},
        {"prompt": "a", "output": wrong},
        {"prompt": "a", "scheduler": {"name": "x", **wrong}},
        {"prompt": "a", "metadata": wrong},
        {"prompt": "a", "sigmas": ["x"] * 10_000},
    ]
    for body in bodies:
        data = request(json.dumps(body).encode())
        server.stays_well(lambda data=data: server.send(data), grows=64 * MIB)


def unfinished(server: Attacked, stack: ExitStack, count: int = CLIENTS) -> list[socket.socket]:
    """Clients that have sent most of their body, or were rejected."""
    data = request(b'{"prompt": "a", "image": "' + b"A" * (8 * MIB), length=9 * MIB)
    clients = [stack.enter_context(server.connect()) for _ in range(count)]
    for client in clients:
        with suppress(OSError):
            client.sendall(data)
    return clients


def test_unfinished_bodies_are_limited_per_client(server: Attacked) -> None:
    with ExitStack() as stack:
        server.stays_well(lambda: unfinished(server, stack), INFLIGHT + 2 * CLIENTS * MIB)
    while (status := status_of(server.send(request(b"{}")))) in (429, 503):
        time.sleep(PAUSE_S)  # until the server notices that the clients have disconnected
    assert status == 422


def test_error_distinguishes_client_and_server_limits() -> None:
    shared = SharedLimit("bytes", "too_many_bytes", total=10, each=5)
    with shared.holding("a", 7), shared.holding("b", 2):
        for client, amount, code in (("a", 1, 429), ("b", 4, 503), ("c", 2, 503)):
            with pytest.raises(Problem) as error, shared.holding(client, amount):
                pass
            assert error.value.status == code, client
        with shared.holding("a", 0):  # a response without files reserves no bytes
            pass
        with shared.holding("b", 1):
            assert shared.all == 10
    assert shared.all == shared.held_by("a") == shared.held_by("b") == 0
    hold = shared.hold("a")
    hold.add(3)
    del hold  # the share of a response that was never sent
    assert shared.all == 0


class LargeOutputs(StandIn):
    """Stand-in worker whose outputs have `SIZE` bytes."""

    async def _output(self, claim: Claim, index: int) -> Output:
        output = await super()._output(claim, index)
        data = os.urandom(SIZE)
        await self.store.put(output.key, data, output.content_type)
        digest = hashlib.sha256(data).hexdigest()
        return output.model_copy(update={"bytes": SIZE, "sha256": digest})


def large_outputs(server: Attacked, queue: Queue) -> LargeOutputs:
    return LargeOutputs(queue, Store(str(server.folder / "outputs")))


@pytest.fixture
async def pool(server: Attacked, queue: Queue) -> AsyncIterator[StandIn]:
    async with large_outputs(server, queue) as pool:
        yield pool


def slow_reader(server: Attacked, stack: ExitStack, path: str) -> socket.socket:
    """A client that requests an output and reads almost none of it."""
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(TIMEOUT_S)
    client.connect(("127.0.0.1", server.port))
    client.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
    return client


async def output_path(http: httpx.AsyncClient) -> str:
    """Path of a newly generated output."""
    job = (await http.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})).json()
    assert "outputs" in job, job
    path: str = job["outputs"][0]["url"]
    return path


async def test_slow_readers_are_limited_per_client(server: Attacked, pool: StandIn) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
        path = await output_path(http)

        def attack() -> None:
            with ExitStack() as stack:
                clients = [slow_reader(server, stack, path) for _ in range(12)]
                statuses = [status_of(client.recv(20)) for client in clients]
                assert set(statuses) == {200, 429}, statuses

        await asyncio.to_thread(server.stays_well, attack, 2 * INFLIGHT)

        async def is_given_whole() -> bool:
            response = await http.get(path)
            assert response.status_code in (200, 429)
            return response.status_code == 200 and len(response.content) == SIZE

        await eventually(is_given_whole)


async def test_an_unfinished_body_and_an_unread_answer_end(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    settings = {"ATELIER_SERVER__BODY_S": "2", "ATELIER_SERVER__MODELS_AGE_S": "0"}
    with attacked(redis_url, tmp_path, **settings) as server, ExitStack() as stack:
        async with (
            large_outputs(server, queue),
            httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http,
        ):
            slow_reader(server, stack, await output_path(http)).recv(20)
            (client,) = unfinished(server, stack, 1)
            assert await asyncio.to_thread(is_closed, client)
            for reason in ("body_overdue", "answer_unread"):
                assert await asyncio.to_thread(server.logs, reason)


async def test_event_streams_and_waits_have_a_bound_for_each_client(
    server: Attacked, pool: StandIn
) -> None:
    pool.may_finish.clear()
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
        job_id = (await http.post("/v1/generate", json=CAT)).json()["id"]
        events = f"/v1/jobs/{job_id}/events"
        async with AsyncExitStack() as stack:
            for _ in range(3):
                stream = await stack.enter_async_context(http.stream("GET", events))
                assert stream.status_code == 200
            assert (await http.get(events)).status_code == 429
            waiting = await http.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})
            assert waiting.status_code == 429 and "retry-after" in waiting.headers
            assert (await http.post("/v1/generate", json=CAT)).status_code == 202

        async def has_room() -> bool:
            async with http.stream("GET", events) as stream:
                return stream.status_code == 200

        await eventually(has_room)


def test_accept_headers_are_bounded(server: Attacked) -> None:
    many = b"Accept: " + b"image/png;q=0.1," * 1900 + b"\r\nContent-Type"
    data = request(b"{}").replace(b"Content-Type", many, 1)
    server.stays_well(lambda: server.send(data), grows=16 * MIB)
    assert status_of(server.send(data)) == 400


@pytest.mark.parametrize("place", ["arguments", "method", "elsewhere"])
def test_long_agent_message_does_not_block_others(server: Attacked, place: str) -> None:
    long = "A" * (MAX_BYTES - MIB)
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    message["params"] = {"name": "edit_image", "arguments": {"prompt": "a cat", "image": "AAAA"}}
    match place:
        case "arguments":
            message["params"]["arguments"]["image"] = long
        case "method":
            message["method"] = long
        case "elsewhere":
            message["params"]["_meta"] = {"note": long}
    body = json.dumps(message).encode()
    head = (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Accept: application/json, text/event-stream\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    statuses = []
    server.stays_well(
        lambda: statuses.append(status_of(server.send(head + body))), grows=5 * MAX_BYTES
    )
    assert set(statuses) <= {200, 400}, statuses


LONG = "A" * (MAX_BYTES - MIB)
ENDPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
    "responses": ("/v1/responses", {"input": LONG, "tools": [{"type": "image_generation"}]}),
    "images": ("/v1/images/generations", {"prompt": "a cat", "background": LONG}),
    "Replicate": ("/v1/predictions", {"version": LONG, "input": {"prompt": "a cat"}}),
    "fal": (f"/fal/queue/atelier/{MODEL}", {"prompt": "a cat", "image_url": LONG}),
    "Hugging Face": (f"/hf/{MODEL}", {"inputs": LONG}),
    "AUTOMATIC1111": ("/sdapi/v1/img2img", {"prompt": "a cat", "init_images": [LONG]}),
    "verify": ("/v1/verify", {"job": LONG, "output": 0}),
}
"""Path and body of the longest text that each endpoint receives."""


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_long_texts_at_every_endpoint_do_not_block_others(server: Attacked, endpoint: str) -> None:
    path, body = ENDPOINTS[endpoint]
    data = request(json.dumps(body).encode()).replace(b"/v1/generate", path.encode(), 1)
    statuses = []
    server.stays_well(lambda: statuses.append(status_of(server.send(data))), grows=5 * MAX_BYTES)
    assert set(statuses) <= {400, 404, 422}, statuses


@pytest.mark.parametrize(("lines", "size"), [(100_000, 500), (1, 16 * MIB)], ids=["small", "one"])
def test_batch_lines_do_not_block_others(server: Attacked, lines: int, size: int) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/images/generations"}
    text = json.dumps({**line, "body": {"model": MODEL, "prompt": "a" * (size - 150)}})
    data = f"{text}\n".encode() * lines

    def attack() -> None:
        with httpx.Client(base_url=server.url, timeout=TIMEOUT_S, trust_env=False) as http:
            sent = {"file": ("lines.jsonl", data)}
            file = http.post("/v1/files", files=sent, data={"purpose": "batch"}).json()["id"]
            request = {"endpoint": line["url"], "completion_window": "24h", "input_file_id": file}
            batch = http.post("/v1/batches", json=request).json()
            while batch["status"] == "validating":
                time.sleep(PAUSE_S)
                batch = http.get(f"/v1/batches/{batch['id']}").json()
            assert batch["status"] == "failed", batch
            http.delete(f"/v1/files/{file}")

    server.stays_well(attack, grows=96 * MIB)
