"""Webhooks, from a request to a signed message at a real HTTP server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.redis.keys import PREFIX
from service.jobs.redis.tasks import cancel
from service.jobs.storage.object_store import Store
from service.settings.redis import RedisSettings
from service.settings.section import ConfigError
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from service.settings.webhooks import WebhookSettings
from service.webhooks.sender import secret_bytes, sign
from tests.service.eventually import eventually
from tests.service.standin import MODEL, SPEC, StandIn

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
CAT = {"prompt": "a cat", "model": MODEL}


@dataclass
class Address:
    """Receiver of webhooks: an HTTP server that responds with `statuses`, then with 200."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    messages: asyncio.Queue[tuple[dict[str, str], bytes]] = field(default_factory=asyncio.Queue)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
            headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in head)}
            body = await reader.readexactly(int(headers["content-length"]))
            status = self.statuses.pop(0) if self.statuses else 200
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
            await writer.drain()
            self.messages.put_nowait((headers, body))

    async def next(self) -> tuple[dict[str, str], dict[str, Any]]:
        """Return the next message, after verifying its signature."""
        async with asyncio.timeout(120):
            headers, body = await self.messages.get()
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        return headers, json.loads(body)


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    address, answering = Address(), set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.create_task(address.answer(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    address.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/done"
    yield address
    server.close()
    await cancel(*answering)


@pytest.fixture
def settings(settings: Settings, redis_url: str) -> Settings:
    return settings.model_copy(
        update={
            "redis": RedisSettings(url=redis_url),
            "server": ServerSettings(allow_networks=(ip_network("127.0.0.0/8"),), models_age_s=0),
            "webhooks": WebhookSettings(
                secret=SECRET, retry_s=0.01, poll_every_s=0.02, max_attempts=3
            ),
        }
    )


async def generate(http: httpx.AsyncClient, webhook: Any, **body: Any) -> httpx.Response:
    return await http.post("/v1/generate", json=CAT | {"webhook": webhook} | body)


async def pending(redis: Redis) -> int:
    """Number of pending messages, plus number of tenants with some."""
    names = [name async for name in redis.scan_iter(f"{PREFIX}webhooks*")]
    return sum([await redis.zcard(name) for name in names])


async def nothing_is_pending(redis: Redis) -> None:
    async def nothing() -> bool:
        return not await pending(redis)

    await eventually(nothing)


async def test_ended_job_is_sent(
    http: httpx.AsyncClient, pool: StandIn, address: Address, empty_redis: Redis
) -> None:
    job = (await generate(http, {"url": address.url}, metadata={"order": "7"})).json()
    assert job["request"]["webhook"]["url"] == address.url
    headers, message = await address.next()
    assert headers["content-type"] == "application/json"
    assert message["type"] == "job.succeeded"
    assert (message["data"]["id"], message["data"]["metadata"]) == (job["id"], {"order": "7"})
    assert message["data"]["outputs"][0]["url"] == f"/v1/jobs/{job['id']}/outputs/0"
    await nothing_is_pending(empty_redis)
    assert address.messages.empty()


async def test_rejected_message_is_retried(
    http: httpx.AsyncClient, pool: StandIn, address: Address, empty_redis: Redis
) -> None:
    address.statuses = [500, 302]
    await generate(http, {"url": address.url})
    ids = {(await address.next())[0]["webhook-id"] for _ in range(3)}
    assert len(ids) == 1
    await nothing_is_pending(empty_redis)


@pytest.mark.parametrize(("statuses", "sent"), [([500] * 9, 3), ([410], 1)])
async def test_message_is_dropped_after_its_retries(
    http: httpx.AsyncClient,
    pool: StandIn,
    address: Address,
    empty_redis: Redis,
    statuses: list[int],
    sent: int,
) -> None:
    address.statuses = statuses
    await generate(http, {"url": address.url})
    await address.next()
    await nothing_is_pending(empty_redis)
    assert address.messages.qsize() == sent - 1


async def test_only_requested_events_are_sent(
    http: httpx.AsyncClient, pool: StandIn, address: Address, empty_redis: Redis
) -> None:
    await generate(http, {"url": address.url, "events": ["failed"]})
    await nothing_is_pending(empty_redis)
    assert address.messages.empty()


async def test_refused_request_leaves_no_webhook(
    http: httpx.AsyncClient, queue: Queue, address: Address, empty_redis: Redis
) -> None:
    await queue.register("cold", SPEC, ready=False)
    for prompt, status in [("a cat", 202), ("a cat", 202), ("a dog", 409)]:
        body = CAT | {"prompt": prompt, "webhook": {"url": address.url}}
        answer = await http.post("/v1/generate", json=body, headers={"Idempotency-Key": "k"})
        assert answer.status_code == status
    assert await pending(empty_redis) == 0
    (job,) = await queue.list(limit=9)
    await queue.cancel(job.id)
    _, message = await address.next()
    assert message["data"]["id"] == job.id
    await nothing_is_pending(empty_redis)


async def test_restart_loses_no_message(
    settings: Settings, queue: Queue, store: Store, address: Address, empty_redis: Redis
) -> None:
    await queue.register("cold", SPEC, ready=False)
    app = create_app(settings, queue, store)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        job_id = (await generate(http, {"url": address.url})).json()["id"]
    await app.state.front.close()
    await queue.cancel(job_id)
    again = create_app(settings, queue, store)
    async with again.router.lifespan_context(again):
        _, message = await address.next()
        await nothing_is_pending(empty_redis)
    assert message["type"] == "job.canceled" and message["data"]["id"] == job_id


@pytest.mark.parametrize(
    ("webhook", "field"),
    [
        ({"url": "http://10.0.0.1/"}, "webhook.url"),
        ({"url": "http://nowhere.invalid/"}, "webhook.url"),
        ({"url": "ftp://example.com/"}, "webhook.url"),
        ({"url": "http://me:secret@example.com/"}, "webhook.url"),
        ({"url": "http:///x"}, "webhook.url"),
        ({"url": "http://[::1/"}, "webhook.url"),
        ({"url": "http://x:99999/"}, "webhook.url"),
        ({"url": "http://xn--zzzzzzzzz99999/"}, "webhook.url"),
        ({"url": "http://xn--a.example.com/"}, "webhook.url"),
        ({"url": "http://a..b/"}, "webhook.url"),
        ({"url": "http://" + "a" * 64 + ".example/"}, "webhook.url"),
        ({"url": "http://167772161/"}, "webhook.url"),
        ({"url": "http://0x0a.1/"}, "webhook.url"),
        ({"url": "http://012.0.0.1/"}, "webhook.url"),
        ({"url": "http://[fe80::1%25eth0]/"}, "webhook.url"),
        ({"url": "http://[fec0::1]/"}, "webhook.url"),
        ({"url": "http://1.1.1.1/", "events": []}, "webhook.events"),
        ({"url": "http://1.1.1.1/", "events": ["running"]}, "webhook.events.0"),
        ({}, "webhook.url"),
    ],
)
async def test_invalid_webhook_is_rejected(
    http: httpx.AsyncClient, pool: StandIn, webhook: Any, field: str
) -> None:
    answer = await generate(http, webhook)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


async def test_webhooks_need_a_secret(
    settings: Settings, queue: Queue, store: Store, pool: StandIn
) -> None:
    app = create_app(settings.model_copy(update={"webhooks": WebhookSettings()}), queue, store)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await generate(http, {"url": "http://1.1.1.1/"})
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == "webhook"


def test_a_signature_is_the_specification_s_own_example() -> None:
    """Source: the example of the Standard Webhooks reference libraries."""
    key = secret_bytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = sign([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_AAAA", "whsec_!", base64.b64encode(KEY).decode()]
)
def test_invalid_secret_is_named(secret: str) -> None:
    with pytest.raises(ConfigError, match=r"webhooks\.secret"):
        secret_bytes(secret)
