"""The node of examples/comfyui, run by a stand-in for ComfyUI against a real front end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from redis.asyncio import Redis

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.model.job import JobError
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.examples.comfyui import ComfyUI, Interrupted, run
from tests.service.conftest import served
from tests.service.eventually import eventually
from tests.service.standin import SIZE_PX, VIDEO, StandIn
from tests.service.test_keys import with_keys

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "comfyui"


@pytest.fixture
def comfyui() -> ComfyUI:
    return ComfyUI()


def graph(server: str, **inputs: Any) -> dict[str, Any]:
    """The recipe's graph with another server and other inputs."""
    workflow: dict[str, Any] = json.loads((FOLDER / "workflow_api.json").read_text("utf-8"))
    workflow["1"]["inputs"] |= {"server": server, **inputs}
    return workflow


async def draw(comfyui: ComfyUI, server: str, **inputs: Any) -> torch.Tensor:
    nodes = comfyui.nodes(FOLDER / "atelier_node.py")
    images: torch.Tensor = await asyncio.to_thread(run, graph(server, **inputs), nodes)
    return images


async def test_the_recipes_graph_gives_an_image(
    address: str, pool: StandIn, comfyui: ComfyUI
) -> None:
    images = await draw(comfyui, address)
    assert images.shape == (1, SIZE_PX, SIZE_PX, 3) and images.dtype == torch.float32
    assert images[0, 0, 0].tolist() == [1, 0, 0] and images[0, 0, -1].tolist() == [0, 0, 1]
    (job,) = pool.received
    assert (job.request["prompt"], job.request["seed"]) == ("a red circle on a blue background", 7)
    assert comfyui.steps == [(step, job.steps) for step in range(1, job.steps + 1)]


async def test_a_video_is_a_batch_of_its_frames(
    address: str, queue: Queue, store: Store, comfyui: ComfyUI
) -> None:
    async with StandIn(queue, store, VIDEO):
        images = await draw(comfyui, address, model=VIDEO.name)
    assert images.shape == (VIDEO.defaults["num_frames"], SIZE_PX, SIZE_PX, 3)


async def test_inputs_reach_the_request(address: str, pool: StandIn, comfyui: ComfyUI) -> None:
    inputs = {"width": 64, "height": 96, "steps": 3, "guidance": 0.0, "num_images": 2}
    images = await draw(comfyui, address, **inputs)
    assert len(images) == 2
    request = pool.received[0].request
    assert (request["width"], request["height"], request["num_images"]) == (64, 96, 2)
    assert (request["num_inference_steps"], request["guidance_scale"]) == (3, 0)


async def test_an_image_is_sent(address: str, pool: StandIn, comfyui: ComfyUI, store: Any) -> None:
    await draw(comfyui, address, image=torch.full((1, 64, 64, 3), 0.5), strength=0.25)
    request = pool.received[0].request
    assert request["strength"] == 0.25
    assert request["image"]


async def test_a_refusal_says_why(address: str, comfyui: ComfyUI) -> None:
    with pytest.raises(Exception, match="no-such-model"):
        await draw(comfyui, address, model="no-such-model")


async def test_a_failed_job_says_why(address: str, pool: StandIn, comfyui: ComfyUI) -> None:
    pool.failure = JobError(code="out_of_memory", message="too large for this device")
    with pytest.raises(Exception, match="too large for this device"):
        await draw(comfyui, address)


async def test_unreachable_server_is_named(comfyui: ComfyUI) -> None:
    with pytest.raises(Exception, match=r"no Atelier server responds at http://127\.0\.0\.1:9"):
        await draw(comfyui, "http://127.0.0.1:9")


async def test_cancel_cancels_the_job(address: str, pool: StandIn, comfyui: ComfyUI) -> None:
    pool.may_finish.clear()
    comfyui.is_interrupted = True
    with pytest.raises(Interrupted):
        await draw(comfyui, address)
    async with httpx.AsyncClient(base_url=address, trust_env=False) as http:

        async def is_canceled() -> bool:
            jobs = (await http.get("/v1/jobs")).json()["data"]
            return [job["state"] for job in jobs] == ["canceled"]

        pool.may_finish.set()
        await eventually(is_canceled)


async def test_key_is_read_from_the_environment(
    settings: Settings,
    redis_url: str,
    queue: Queue,
    store: Store,
    pool: StandIn,
    comfyui: ComfyUI,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = with_keys(settings, redis_url)
    keys = ApiKeys(Redis.from_url(redis_url, decode_responses=True))
    _, key = await keys.create("acme")
    await keys.close()
    async with served(create_app(settings, queue, store), settings) as address:
        with pytest.raises(Exception, match="API key"):
            await draw(comfyui, address)
        monkeypatch.setenv("ATELIER_API_KEY", key)
        await draw(comfyui, address)
    assert [job.tenant for job in pool.received] == ["acme"]
