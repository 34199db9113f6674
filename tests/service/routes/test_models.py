"""/v1/models."""

from __future__ import annotations

import httpx

from service.jobs.queue import Queue
from tests.service.standin import MODEL, POOL, SPEC, StandIn


async def test_a_model_tells_what_it_serves(http: httpx.AsyncClient, pool: StandIn) -> None:
    model = (await http.get(f"/v1/models/{MODEL}")).json()
    assert model["object"] == "model" and model["name"] == MODEL and model["family"] == "flux"
    assert model["tasks"] == ["text-to-image", "image-to-image"]
    assert model["limits"]["size_multiple_px"] == 16
    assert model["defaults"]["num_inference_steps"] == 4
    assert model["task_defaults"] == {"image-to-image": {"strength": 0.6, "guidance_scale": 7.0}}
    assert model["fields"] == sorted(SPEC.fields)
    assert (model["pools"], model["ready"]) == ([POOL], True)
    assert (await http.get("/v1/models")).json() == {"object": "list", "data": [model]}


async def test_a_model_outlives_its_pools(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("gone", SPEC, ready=True)
    await queue.unregister("gone", MODEL)
    model = (await http.get(f"/v1/models/{MODEL}")).json()
    assert (model["pools"], model["ready"]) == ([], False)
    accepted = await http.post("/v1/generate", json={"prompt": "a cat"})
    assert accepted.status_code == 202


async def test_without_pools_there_are_no_models(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/models")).json() == {"object": "list", "data": []}
