"""Round trips to Redis of an accepted request: one, for the script that queues its job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import CostKey, CostRow, PoolFacts
from service.jobs.storage.object_store import Store
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service.round_trips import commands_of, fewest_commands
from tests.service.standin import MODEL, SPEC

BODY = {"prompt": "a cat", "model": MODEL}
REPEATS = 5
"""Number of requests, of which the cheapest counts: on a slow machine, cached costs may expire
between any two."""
LONG_S = 3600
OF_THE_SCRIPT = ["evalsha"]
QUOTAS = TenantSettings(
    max_queued=1000, device_seconds_per_hour=1e6, stored_bytes=10**9, max_compiling=1
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings that cache keys, models and tenants for the whole test."""
    server = ServerSettings(keys=True, keys_age_s=LONG_S, models_age_s=LONG_S)
    return Settings(state_dir=tmp_path, server=server, tenants={"studio": QUOTAS})


@pytest.fixture
async def http(
    settings: Settings, redis_url: str, queue: Queue, store: Store
) -> AsyncIterator[httpx.AsyncClient]:
    """Client of an app without background tasks, with measured costs."""
    await queue.register("pool", SPEC, ready=True, facts=PoolFacts("a", 4))
    row = CostRow(step_s=0.1, encode_s=0.1, decode_s=0.1)
    bucket = SPEC.bucket(SPEC.defaults, ())
    await queue.measured(SPEC.name, {CostKey(bucket, "a", 1): row})
    keyed = settings.model_copy(
        update={"redis": settings.redis.model_copy(update={"url": redis_url})}
    )
    app = create_app(keyed, queue, store)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http
    await app.state.front.close()


async def key_of(queue: Queue, tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {(await ApiKeys(queue.redis).create(tenant))[1]}"}


@pytest.mark.parametrize("tenant", ["studio", "nobody"], ids=["quotas", "no quotas"])
@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({}, {}),
        ({"deadline_s": 600, "priority": "high", "metadata": {"a": "b"}}, {}),
        ({}, {"Accept": "application/json", "Idempotency-Key": "{}"}),
    ],
    ids=["plain", "deadline", "idempotency key"],
)
async def test_an_accepted_request_is_one_round_trip(
    http: httpx.AsyncClient,
    queue: Queue,
    redis_url: str,
    tenant: str,
    fields: dict[str, Any],
    headers: dict[str, str],
) -> None:
    key, answers = await key_of(queue, tenant), list[httpx.Response]()

    async def send() -> None:
        named = {name: value.format(len(answers)) for name, value in headers.items()}
        answers.append(await http.post("/v1/generate", json=BODY | fields, headers=key | named))

    await send()  # fills the caches
    commands = await fewest_commands(redis_url, REPEATS, send)
    assert commands == OF_THE_SCRIPT
    assert {answer.status_code for answer in answers} == {202}
    queues = [answer.json()["queue"] for answer in answers]
    assert all(place["eta_s"] > 0 for place in queues), "the estimate is present"
    assert queues[-1]["position"] == REPEATS, "all earlier requests are ahead"
    left = [f'"queued";r={1000 - count}' for count in range(1, REPEATS + 2)]
    rate_limits = [answer.headers.get("RateLimit", "") for answer in answers]
    assert tenant != "studio" or [text.split(",")[0] for text in rate_limits] == left


async def test_commands_are_counted(redis_url: str, queue: Queue) -> None:
    """Commands called by a script are not counted."""
    job = "job_none"

    async def send() -> None:
        await queue.get(job)
        await queue.redis.get("a")

    await queue.get(job)  # afterwards the server has the script cached
    assert await commands_of(redis_url, send) == ["evalsha", "get"]
