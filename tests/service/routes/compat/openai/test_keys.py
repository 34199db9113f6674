"""API keys, tenants and limits at OpenAI's compatible endpoint, tested by the OpenAI SDK."""

from __future__ import annotations

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError, NotFoundError, RateLimitError

from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service.openai_clients import openai_client
from tests.service.standin import MODEL, StandIn
from tests.service.test_keys import with_keys


@pytest.fixture
def settings(settings: Settings, redis_url: str) -> Settings:
    tenants = {"zoo": TenantSettings(max_queued=1)}
    return with_keys(settings, redis_url).model_copy(update={"tenants": tenants})


def client_with(wire: httpx.AsyncClient, key: str) -> AsyncOpenAI:
    return openai_client(str(wire.base_url), key)


async def test_job_is_private_to_its_tenant_and_its_link_is_public(
    wire: httpx.AsyncClient, keys: ApiKeys, pool: StandIn
) -> None:
    _, key = await keys.create("acme")
    async with client_with(wire, key) as client:
        made = await client.images.generate(prompt="a cat", response_format="url")
    assert pool.received[0].tenant == "acme"
    assert made.data is not None and made.data[0].url is not None
    assert (await wire.get(made.data[0].url)).status_code == 200
    assert (await wire.get(f"/v1/jobs/{pool.received[0].id}/outputs/0")).status_code == 401


async def test_a_wrong_key_is_an_authentication_error(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    async with client_with(wire, "atl_none_none") as client:
        with pytest.raises(AuthenticationError) as error:
            await client.images.generate(prompt="a cat")
        assert error.value.code == "invalid_api_key"
        with pytest.raises(AuthenticationError):
            await client.models.list()


async def test_full_queue_is_a_rate_limit_error_with_retry_after(
    wire: httpx.AsyncClient, keys: ApiKeys, pool: StandIn, queue: Queue
) -> None:
    _, key = await keys.create("zoo")
    pool.may_finish.clear()
    for _ in range(2):  # a running job and a queued job
        await wire.post(
            "/v1/generate", json={"prompt": "a"}, headers={"Authorization": f"Bearer {key}"}
        )
        await pool.has_claimed.wait()
    async with client_with(wire, key) as client:
        with pytest.raises(RateLimitError) as error:
            await client.images.generate(prompt="a cat")
    headers = error.value.response.headers
    assert int(headers["retry-after-ms"]) == 1000 * int(headers["retry-after"])
    assert headers["x-should-retry"] == "true"
    assert error.value.type == "rate_limit_error"
    pool.may_finish.set()


async def test_models_are_listed_in_the_clients_fields(
    wire: httpx.AsyncClient, keys: ApiKeys, pool: StandIn
) -> None:
    _, key = await keys.create("acme")
    async with client_with(wire, key) as client:
        page = await client.models.list()
        model = await client.models.retrieve(MODEL)
        assert page.data == [model]
        assert (model.id, model.object, model.owned_by) == (MODEL, "model", "atelier")
        with pytest.raises(NotFoundError) as error:
            await client.models.retrieve("nobody")
        assert error.value.code == "model_not_found"
