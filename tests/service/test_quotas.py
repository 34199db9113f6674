"""What clients are told of their tenant's quotas."""

from __future__ import annotations

import re

import httpx
import pytest

from service.jobs.queue import Queue
from service.settings import Settings, TenantSettings
from tests.service.standin import MODEL, SPEC, StandIn

CAT = {"prompt": "a cat", "model": MODEL}
POLICY = '"queued";q=2;qu="concurrent-requests", "device-seconds";q=5;qu="device-seconds";w=3600'


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The tenant of everybody has quotas."""
    limits = TenantSettings(max_queued=2, device_seconds_per_hour=5, weight=3)
    return settings.model_copy(update={"tenants": {"default": limits}})


async def test_answers_tell_what_is_left(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("cold", SPEC, ready=False)
    for queued in (1, 2):
        answer = await http.post("/v1/generate", json=CAT)
        assert answer.status_code == 202
        assert answer.headers["ratelimit-policy"] == POLICY
        told = f'"queued";r={2 - queued}, "device-seconds";r={5 - queued};t=3600'
        assert answer.headers["ratelimit"] == told
    job = await queue.get(answer.json()["id"])
    assert job is not None and job.weight == 3
    answer = await http.post("/v1/generate", json=CAT)
    assert answer.status_code == 429 and answer.headers["retry-after"] == "30"
    assert answer.headers["ratelimit-policy"] == POLICY
    assert answer.headers["ratelimit"] == '"queued";r=0'
    problem = answer.json()
    assert problem["type"] == "urn:atelier:problem:quota_exceeded"
    assert problem["violated-policies"] == ["queued"]
    assert problem["error"]["type"] == "rate_limit_error"
    assert "ratelimit" not in (await http.get("/v1/jobs")).headers


@pytest.mark.parametrize("headers", [{"Prefer": "wait"}, {"Accept": "image/png"}])
async def test_an_hour_that_is_used_up(
    http: httpx.AsyncClient, pool: StandIn, headers: dict[str, str], queue: Queue
) -> None:
    """The stand-in says that a picture took a tenth of a device-second."""
    limits = TenantSettings(max_queued=2, device_seconds_per_hour=5)
    for number in range(1, 51):
        answer = await http.post("/v1/generate", json=CAT, headers=headers)
        assert answer.status_code == 200
        left = re.search(r'"device-seconds";r=(\d);t=(\d+)', answer.headers["ratelimit"])
        assert left and int(left[1]) == int(5 - number / 10 + 1e-9)
        assert 3599 <= int(left[2]) <= 3660
    answer = await http.post("/v1/generate", json=CAT, headers=headers)
    assert answer.status_code == 429
    wait_s = int(answer.headers["retry-after"])
    assert answer.headers["ratelimit"] == f'"device-seconds";r=0;t={wait_s}'
    assert 3599 <= wait_s <= 3660
    assert (await queue.standing("default", limits)).queued == 0


async def test_events_too(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await http.post("/v1/generate", json=CAT, headers={"Accept": "text/event-stream"})
    assert answer.headers["ratelimit-policy"] == POLICY


def test_settings_of_all_that_are_not_named() -> None:
    settings = Settings(tenants={"a": {"weight": 2}, "*": {"max_queued": 1}})
    assert settings.tenant("a") == TenantSettings(weight=2)
    assert settings.tenant("b") == TenantSettings(max_queued=1)
    assert Settings().tenant("b") == TenantSettings()
