"""Requests of Open WebUI to an image service, replayed against the real front end.
`open_webui.json` was recorded from its image router by a logging server."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from redis.asyncio import Redis

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.conftest import served
from tests.service.standin import MODEL, StandIn
from tests.service.test_keys import with_keys

EXCHANGES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("open_webui.json").read_text("utf-8")
)["exchanges"]
KEYLESS = "automatic1111: without a key"
CASES = [case for case in dict.fromkeys(each["case"] for each in EXCHANGES) if case != KEYLESS]
JOBS: dict[str, dict[str, Any]] = {
    "openai: request of a chat": {"num_images": 1},
    "openai: size and number": {"num_images": 2, "width": 64, "height": 64},
    "openai: further parameters of the settings": {"seed": 7, "num_inference_steps": 3},
    "openai: edit one image": {"prompt": "a blue circle", "num_images": 1},
    "openai: edit a list of images": {"num_images": 2, "width": 64, "height": 64},
    "automatic1111: request of a chat": {"num_inference_steps": 4, "width": 64},
    "automatic1111: number and negative prompt": {"num_images": 2, "negative_prompt": "blur"},
    "automatic1111: further parameters of the settings": {"seed": 7, "guidance_scale": 3},
    KEYLESS: {"num_images": 1},
}
"""Fields of the job that a case creates."""


@pytest.fixture
async def key(redis_url: str, queue: Queue) -> AsyncIterator[str]:
    keys = ApiKeys(Redis.from_url(redis_url, decode_responses=True))
    _, key = await keys.create("acme")
    yield key
    await keys.close()


@pytest.fixture
async def guarded(
    settings: Settings, redis_url: str, queue: Queue, store: Store, pool: StandIn
) -> AsyncIterator[str]:
    """Address of a server that requires API keys."""
    settings = with_keys(settings, redis_url)
    async with served(create_app(settings, queue, store), settings) as address:
        yield address


class OpenWebUI:
    """Client that sends recorded requests and reads the parts of responses that Open WebUI
    reads."""

    def __init__(self, http: httpx.AsyncClient, key: str = "") -> None:
        self._http = http
        self._key = key
        self._options: dict[str, Any] = {}

    async def replay(self, case: str) -> list[Image.Image]:
        """Send a case's requests in order; returns the images of the last response."""
        for exchange in (each for each in EXCHANGES if each["case"] == case):
            response = await self._http.request(
                exchange["method"],
                exchange["path"],
                headers=self._headers(exchange["headers"]),
                **self._body(exchange),
            )
            assert response.status_code == 200, response.text
            images = self._read(exchange["path"], response.json())
        return images

    def _headers(self, recorded: Mapping[str, str]) -> dict[str, str]:
        bearer, basic = "Bearer KEY", f"Basic {_base64(b'atelier:KEY')}"
        credentials = {
            bearer: f"Bearer {self._key}",
            basic: f"Basic {_base64(f'atelier:{self._key}'.encode())}",
        }
        return {name: credentials.get(value, value) for name, value in recorded.items()}

    def _body(self, exchange: Mapping[str, Any]) -> dict[str, Any]:
        if "parts" in exchange:
            return {"files": [_part(part) for part in exchange["parts"]]}
        if exchange["path"].endswith("/options") and "json" in exchange:
            # Open WebUI sends all options back with one change
            chosen = exchange["json"]["sd_model_checkpoint"]
            return {"json": self._options | {"sd_model_checkpoint": chosen}}
        return {"json": exchange["json"]} if "json" in exchange else {}

    def _read(self, path: str, answer: Any) -> list[Image.Image]:
        match path.rsplit("/", 1)[-1]:
            case "options":
                if answer is not None and "sd_model_checkpoint" in answer:
                    self._options = answer
                return []
            case "sd-models":
                assert [(each["title"], each["model_name"]) for each in answer]
                return []
            case "txt2img":
                assert isinstance(answer["info"], str)
                return list(_images(answer["images"]))
        return list(_images(each["b64_json"] for each in answer["data"]))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _part(part: Mapping[str, str]) -> tuple[str, tuple[str | None, bytes, str]]:
    """Convert a recorded form part to httpx's format."""
    if "text" in part:
        return part["name"], (None, part["text"].encode(), part["type"])
    return part["name"], (part["filename"], base64.b64decode(part["base64"]), part["type"])


def _images(texts: Any) -> Iterator[Image.Image]:
    for text in texts:
        yield Image.open(io.BytesIO(base64.b64decode(text)))


@pytest.mark.parametrize("case", CASES)
async def test_each_request_of_open_webui_is_answered(
    case: str, guarded: str, key: str, pool: StandIn
) -> None:
    async with httpx.AsyncClient(base_url=guarded, trust_env=False, timeout=30) as http:
        images = await OpenWebUI(http, key).replay(case)
    if case in JOBS:
        (job,) = pool.received
        assert job.tenant == "acme" and job.model == MODEL
        assert JOBS[case].items() <= job.request.items()
        assert len(images) == job.images and {image.format for image in images} == {"PNG"}
    else:
        assert not images and not pool.received


async def test_a_server_without_keys_takes_an_empty_one(address: str, pool: StandIn) -> None:
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=30) as http:
        assert len(await OpenWebUI(http).replay(KEYLESS)) == 1


async def test_an_image_to_edit_reaches_the_job(guarded: str, key: str, pool: StandIn) -> None:
    async with httpx.AsyncClient(base_url=guarded, trust_env=False, timeout=30) as http:
        await OpenWebUI(http, key).replay("openai: edit one image")
    assert pool.received[0].request["image"]
