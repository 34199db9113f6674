"""Isolation of tenants in outgoing requests: hanging receivers delay only their tenant, and each
tenant's secrets sign its webhooks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from ipaddress import ip_network
from statistics import median
from types import FrameType

import httpx
import pytest
from fastapi import FastAPI

from service.errors.problems import Problem
from service.front_end.front_end import FETCHES_EACH
from service.http import fetch
from service.http.fair_limiter import FairLimiter
from service.http.inflight_limits import SharedLimit
from service.jobs.queue import Queue
from service.jobs.redis.tasks import cancel
from service.settings.settings import Settings
from service.settings.webhooks import WebhookSettings
from service.webhooks.secrets import WebhookSecret, WebhookSecrets
from service.webhooks.sender import EACH, secret_bytes
from tests.service.conftest import served
from tests.service.eventually import eventually
from tests.service.standin import MODEL, StandIn, picture
from tests.service.test_image_attacks import HEALTHY_S, asking_by_hand, healthz_cpu_s
from tests.service.test_keys import acme, with_keys, zoo

__all__ = ["acme", "zoo"]

CAT = {"prompt": "a cat", "model": MODEL}
HANGING = 80


@dataclass
class Site:
    """HTTP server that holds requests to /hang, and answers others with an image."""

    url: str = ""
    held: int = 0
    max_held: int = 0
    messages: asyncio.Queue[tuple[dict[str, str], bytes]] = field(default_factory=asyncio.Queue)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            if "/hang" in head[0]:
                return await self.hold()
            headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in head[1:-2])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            file = picture()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(file) + file)
            await writer.drain()
            self.messages.put_nowait((headers, body))

    async def hold(self) -> None:
        self.held += 1
        self.max_held = max(self.held, self.max_held)
        try:
            await asyncio.Event().wait()
        finally:
            self.held -= 1

    async def next(self) -> tuple[dict[str, str], bytes]:
        async with asyncio.timeout(120):
            return await self.messages.get()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site, answering = Site(), set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.create_task(site.answer(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    site.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield site
    server.close()
    await cancel(*answering)


@pytest.fixture
def settings(settings: Settings, redis_url: str) -> Settings:
    server = {"allow_networks": (ip_network("127.0.0.0/8"),), "allow_image_urls": True}
    webhooks = WebhookSettings(poll_every_s=0.02, timeout_s=60)
    return with_keys(settings, redis_url, **server).model_copy(update={"webhooks": webhooks})


@pytest.fixture
def secrets(queue: Queue) -> WebhookSecrets:
    return WebhookSecrets(queue.redis)


def asking(url: str) -> dict[str, object]:
    return CAT | {"webhook": {"url": url}}


def signatures(secrets: list[WebhookSecret], headers: dict[str, str], body: bytes) -> str:
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digests = (hmac.digest(secret_bytes(secret.text), signed, hashlib.sha256) for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


async def test_each_tenant_s_messages_have_its_own_signatures(
    acme: httpx.AsyncClient,
    zoo: httpx.AsyncClient,
    secrets: WebhookSecrets,
    site: Site,
    pool: StandIn,
) -> None:
    refused = await acme.post("/v1/generate", json=asking(site.url))
    assert refused.status_code == 422 and "atelier webhooks create" in refused.json()["detail"]
    old, other = await secrets.create("acme"), await secrets.create("zoo")
    assert (await zoo.post("/v1/generate", json=asking(site.url))).status_code == 202
    headers, body = await site.next()
    assert headers["webhook-signature"] == signatures([other], headers, body)
    new = await secrets.create("acme")
    await acme.post("/v1/generate", json=asking(site.url))
    headers, body = await site.next()
    assert headers["webhook-signature"] == signatures([new, old], headers, body)
    assert await secrets.revoke(old.id) and not await secrets.revoke(old.id)
    await acme.post("/v1/generate", json=asking(site.url))
    headers, body = await site.next()
    assert headers["webhook-signature"] == signatures([new], headers, body)


@pytest.mark.parametrize("url", ["http://8.8.8.8:99999/", "http://xn--zzzzzzzzz99999/", "http://"])
async def test_unreachable_image_url_is_rejected(
    url: str, acme: httpx.AsyncClient, pool: StandIn
) -> None:
    refused = await acme.post("/v1/generate", json=CAT | {"image": url})
    assert refused.status_code == 422 and refused.json()["errors"][0]["field"] == "image"


async def test_two_secrets_of_a_tenant_are_valid_at_most(secrets: WebhookSecrets) -> None:
    first, second = await secrets.create("acme"), await secrets.create("acme")
    with pytest.raises(ValueError, match=f"revoke the older one, {first.id}"):
        await secrets.create("acme")
    assert await secrets.all() == [first, second] and await secrets.of("zoo") == []
    assert first.text not in repr(first)
    with pytest.raises(ValueError, match="is not a valid tenant name"):
        await secrets.create("a b")


async def test_hanging_receivers_of_a_tenant_delay_no_other(
    app: FastAPI,
    acme: httpx.AsyncClient,
    zoo: httpx.AsyncClient,
    secrets: WebhookSecrets,
    site: Site,
    queue: Queue,
    pool: StandIn,
) -> None:
    for tenant in ("acme", "zoo"):
        await secrets.create(tenant)
    for _ in range(HANGING):
        job = asking(f"{site.url}/hang")
        assert (await acme.post("/v1/generate", json=job)).status_code == 202

    async def all_places_are_taken() -> bool:
        return site.held == EACH

    await eventually(all_places_are_taken)
    for _ in range(3):
        await zoo.post("/v1/generate", json=asking(f"{site.url}/good"))
        await site.next()
    assert site.held == site.max_held == EACH
    assert median([await healthz_cpu_s(zoo) for _ in range(5)]) < HEALTHY_S


async def test_hanging_image_urls_of_a_tenant_delay_no_other(
    acme: httpx.AsyncClient, zoo: httpx.AsyncClient, site: Site, pool: StandIn
) -> None:
    def image(path: str) -> dict[str, str]:
        return CAT | {"image": f"{site.url}{path}"}

    hanging = [
        asyncio.create_task(acme.post("/v1/generate", json=image("/hang"))) for _ in range(HANGING)
    ]

    async def all_places_are_taken() -> bool:
        return site.held == FETCHES_EACH

    try:
        await eventually(all_places_are_taken)
        answer = await zoo.post("/v1/generate", json=image("/good"))
        assert answer.status_code == 202
        assert site.max_held == FETCHES_EACH
        assert median([await healthz_cpu_s(zoo) for _ in range(5)]) < HEALTHY_S
    finally:
        await cancel(*hanging)


async def test_slots_rotate_over_tenants() -> None:
    limiter, order = FairLimiter(total=2, each=2), []
    places = [await limiter.acquire(tenant) for tenant in "xy"]
    assert not limiter.try_acquire("b")

    async def take(tenant: str) -> None:
        async with limiter.slot(tenant):
            order.append(tenant)

    waiting = [asyncio.create_task(take(tenant)) for tenant in "aaaabbc"]
    await asyncio.sleep(0)
    for place in places:
        place.close()
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "c", "a", "b", "a", "a"]
    assert limiter.free == 2 and not limiter.tenants


async def test_slots_are_limited_per_host_and_tenant() -> None:
    limiter, most = FairLimiter(total=4, each=3, per_host=2), Counter[str]()
    now: Counter[str] = Counter()

    async def take(tenant: str, host: str) -> None:
        async with limiter.slot(tenant, host):
            for name in (tenant, host, "all"):
                now[name] += 1
                most[name] = max(most[name], now[name])
            await asyncio.sleep(0)
            for name in (tenant, host, "all"):
                now[name] -= 1

    await asyncio.gather(*(take("ab"[n % 2], "xyz"[n % 3]) for n in range(60)))
    assert most == {"a": 3, "b": 3, "x": 2, "y": 2, "z": 2, "all": 4} or most["all"] == 4
    assert max(most["a"], most["b"]) <= 3 and max(most["x"], most["y"], most["z"]) <= 2


async def test_canceled_waiter_takes_no_slot() -> None:
    limiter = FairLimiter(total=1, each=1)
    place = limiter.try_acquire("a")
    assert place
    waiting = [asyncio.create_task(_hold(limiter, tenant)) for tenant in "bc"]
    await asyncio.sleep(0)
    waiting[0].cancel()
    place.close()
    await asyncio.wait(waiting[:1])
    await waiting[1]
    assert limiter.free == 1


async def _hold(limiter: FairLimiter, tenant: str) -> None:
    async with limiter.slot(tenant):
        pass


async def calls_of(waiting: int) -> int:
    """Count the function calls in which that many tasks of a tenant wait, are canceled and are
    served."""
    limiter, calls = FairLimiter(total=2, each=1), 0
    place = await limiter.acquire("a")

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        tasks = [asyncio.create_task(_hold(limiter, "a")) for _ in range(waiting)]
        await asyncio.sleep(0)
        await cancel(*tasks[1::2])
        place.close()
        await asyncio.gather(*tasks[::2])
    finally:
        sys.setprofile(before)
    assert limiter.free == 2 and not limiter.tenants
    return calls


async def test_acquiring_a_slot_takes_constant_time() -> None:
    assert await calls_of(800) < 5 * await calls_of(200)  # 4, and a constant part


async def test_waiters_are_bounded() -> None:
    limiter = FairLimiter(1, 1, line=SharedLimit("places", "too_many_places", total=3, each=2))
    place = await limiter.acquire("a")
    waiting = [asyncio.create_task(_hold(limiter, tenant)) for tenant in "ab"]
    await asyncio.sleep(0)
    for tenant, status in (("a", 503), ("b", 503)):
        with pytest.raises(Problem) as error:
            await limiter.acquire(tenant)
        assert error.value.status == status and "Retry-After" in error.value.headers
    await cancel(waiting[1])
    with pytest.raises(Problem) as error:
        await limiter.acquire("a")
    assert error.value.status == 429
    place.close()
    await waiting[0]
    (await limiter.acquire("a")).close()


async def test_images_that_wait_to_be_fetched_are_bounded(
    app: FastAPI, acme: httpx.AsyncClient, zoo: httpx.AsyncClient, site: Site, pool: StandIn
) -> None:
    fetches = app.state.front.fetches
    waiting = [asyncio.create_task(fetches.acquire("acme")) for _ in range(fetch.WAITING_EACH)]
    await asyncio.sleep(0)
    image = CAT | {"image": f"{site.url}/good"}
    refused = await acme.post("/v1/generate", json=image)
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "too_many_fetches"
    assert int(refused.headers["retry-after"]) > 0
    assert (await zoo.post("/v1/generate", json=image)).status_code == 202
    await cancel(*waiting)


async def test_a_webhook_is_sent_while_every_lookup_of_requests_hangs(
    app: FastAPI, acme: httpx.AsyncClient, secrets: WebhookSecrets, site: Site, pool: StandIn
) -> None:
    await secrets.create("acme")
    pool.may_finish.clear()
    assert (await acme.post("/v1/generate", json=asking(site.url))).status_code == 202
    lookups = app.state.front.resolver.slots
    with ExitStack() as stack:
        for number in range(fetch.LOOKUPS):
            stack.enter_context(await lookups.acquire(f"tenant {number}"))
        pool.may_finish.set()
        await site.next()


async def test_disconnected_client_stops_waiting_for_a_lookup(
    app: FastAPI,
    settings: Settings,
    acme: httpx.AsyncClient,
    secrets: WebhookSecrets,
    pool: StandIn,
) -> None:
    await secrets.create("acme")
    lookups = app.state.front.resolver.slots
    with ExitStack() as stack:
        for number in range(fetch.LOOKUPS):
            stack.enter_context(await lookups.acquire(f"tenant {number}"))

        async def waits() -> bool:
            return bool(lookups.tenants["acme"])

        async def left() -> bool:
            return not lookups.tenants["acme"]

        async with served(app, settings) as address:
            body = asking("https://example.com/")
            async with asking_by_hand(address, acme.headers["Authorization"], body):
                await eventually(waits)
            await eventually(left)
