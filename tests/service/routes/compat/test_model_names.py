"""Model names with slashes, and aliases from the settings, at every endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.openai_clients import openai_client
from tests.service.standin import SPEC, StandIn

NAME = "black-forest-labs/flux.1-dev"
SLASHED = SPEC.model_copy(update={"name": NAME})
ALIASES = {"dall-e-3": NAME, "openai/gpt-image-1": NAME, "tts-1": "no-such-model"}
TOOL = {"type": "image_generation"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"aliases": ALIASES})


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, SLASHED) as pool:
        yield pool


def requests(model: str) -> dict[str, Any]:
    chat = {"model": model, "messages": [{"role": "user", "content": "a cat"}]}
    return {
        "/v1/generate": {"model": model, "prompt": "a cat"},
        "/v1/images/generations": {"model": model, "prompt": "a cat"},
        "/v1/chat/completions": chat,
        "/v1/responses": {"model": model, "input": "a cat", "tools": [TOOL]},
        f"/hf/{model}": {"inputs": "a cat"},
        f"/fal/run/{model}": {"prompt": "a cat"},
        f"/fal/run/fal-ai/{model}": {"prompt": "a cat"},
        f"/fal/queue/{model}": {"prompt": "a cat"},
        "/v1/predictions": {"version": model, "input": {"prompt": "a cat"}},
        "/v1/predictions#owner": {"model": f"owner/{model}", "input": {"prompt": "a cat"}},
        f"/v1/models/{model}/predictions": {"input": {"prompt": "a cat"}},
        f"/v1/models/owner/{model}/predictions": {"input": {"prompt": "a cat"}},
        "/sdapi/v1/txt2img": {
            "prompt": "a cat",
            "override_settings": {"sd_model_checkpoint": model},
        },
    }


@pytest.mark.parametrize("model", [NAME, "dall-e-3", "openai/gpt-image-1"])
async def test_every_endpoint_reaches_the_model(
    http: httpx.AsyncClient, pool: StandIn, model: str
) -> None:
    for address, body in requests(model).items():
        answer = await http.post(address, json=body)
        assert answer.status_code < 300, answer.text
        job = await http.get(answer.headers["Location"])
        assert job.json()["model"] == NAME


@pytest.mark.parametrize("model", [NAME, "dall-e-3"])
async def test_the_sdk_retrieves_it(wire: httpx.AsyncClient, pool: StandIn, model: str) -> None:
    async with openai_client(str(wire.base_url)) as client:
        answer = await client.models.retrieve(model)
    assert answer.id == NAME


async def test_a_model_lists_its_aliases(http: httpx.AsyncClient, pool: StandIn) -> None:
    (model,) = (await http.get("/v1/models")).json()["data"]
    assert (model["name"], model["aliases"]) == (NAME, ["dall-e-3", "openai/gpt-image-1"])


async def test_an_alias_does_not_make_the_model_s_name_necessary(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    answer = await http.post("/v1/generate", json={"prompt": "a cat"})
    assert answer.json()["model"] == NAME


@pytest.mark.parametrize("model", ["tts-1", "who/is-this"])
async def test_unknown_model_name_is_not_found(
    http: httpx.AsyncClient, pool: StandIn, model: str
) -> None:
    for address, body in requests(model).items():
        answer = await http.post(address, json=body)
        assert answer.status_code == 404 and NAME in answer.text, answer.text


async def test_predictions_path_is_not_a_model_name(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await http.get(f"/v1/models/{NAME}/predictions")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
