"""/v1/models: models, their limits, and their availability."""

from __future__ import annotations

from collections.abc import Awaitable

import httpx

from service.jobs.queue import Queue
from service.settings.queue import QueueSettings
from tests.service.eventually import eventually
from tests.service.standin import MODEL, POOL, SPEC, StandIn


async def test_model_description(http: httpx.AsyncClient, pool: StandIn) -> None:
    model = (await http.get(f"/v1/models/{MODEL}")).json()
    assert model["object"] == "model" and model["name"] == MODEL and model["family"] == "flux"
    assert model["tasks"] == ["text-to-image", "image-to-image"]
    assert model["limits"]["size_multiple_px"] == 16
    assert model["defaults"]["num_inference_steps"] == 4
    assert model["task_defaults"] == {"image-to-image": {"strength": 0.6, "guidance_scale": 7.0}}
    assert (model["needed"], model["strength_needs"]) == ([], "image")
    assert model["fields"] == sorted(SPEC.fields)
    assert model["batching"] == {"mode": "exact", "levels": None}
    assert (model["pools"], model["ready"]) == ([POOL], True)
    assert (await http.get("/v1/models")).json() == {"object": "list", "data": [model]}


async def test_required_fields_of_a_model(http: httpx.AsyncClient, queue: Queue) -> None:
    needs = {"needed": frozenset({"pose_video", "face_video"}), "strength_needs": "mask_image"}
    await queue.register("needy", SPEC.model_copy(update=needs), ready=True)
    model = (await http.get(f"/v1/models/{MODEL}")).json()
    assert model["needed"] == ["face_video", "pose_video"]
    assert model["strength_needs"] == "mask_image"


async def test_warnings_of_loading_are_listed(http: httpx.AsyncClient, queue: Queue) -> None:
    warnings = ("model.safetensors: ignored, since they are not weights: __x0__",)
    await queue.register("warned", SPEC.model_copy(update={"warnings": warnings}), ready=True)
    (model,) = (await http.get("/v1/models")).json()["data"]
    assert model["warnings"] == [*warnings]


async def test_model_limits_combine_model_and_server_limits(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    loose = {"max_steps": 1000, "max_side_px": 2**16, "max_pixels": 2**32, "max_images": 100}
    limits = SPEC.limits.model_copy(update=loose)
    await queue.register("loose", SPEC.model_copy(update={"limits": limits}), ready=True)
    values = (await http.get(f"/v1/models/{MODEL}")).json()["limits"]
    assert (values["max_steps"], values["max_images"], values["max_side_px"]) == (200, 16, 4096)
    assert (values["max_pixels"], values["max_prompt_chars"]) == (4096**2, 10_000)
    for steps, status in ((values["max_steps"], 202), (values["max_steps"] + 1, 422)):
        body = {"prompt": "a cat", "num_inference_steps": steps}
        assert (await http.post("/v1/generate", json=body)).status_code == status


async def test_model_survives_its_pools(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("gone", SPEC, ready=True)
    await queue.unregister("gone", MODEL)
    model = (await http.get(f"/v1/models/{MODEL}")).json()
    assert (model["pools"], model["ready"]) == ([], False)
    accepted = await http.post("/v1/generate", json={"prompt": "a cat"})
    assert accepted.status_code == 202


async def test_a_model_that_was_removed_is_refused_by_name(
    http: httpx.AsyncClient, queue: Queue, redis_url: str
) -> None:
    forgetful = await Queue.connect(redis_url, QueueSettings(model_retention_s=1e-6))
    for name in ("old", "new"):
        await queue.register(name, SPEC.model_copy(update={"name": name}), ready=True)

    async def status(name: str) -> int:
        return (await http.post("/v1/generate", json={"prompt": "", "model": name})).status_code

    async def removed(name: str) -> None:
        await queue.unregister(name, name)
        await forgetful.reap()

    await removed("old")
    await eventually(lambda: is_now(status("old"), 404))
    assert (await http.get("/v1/models/old")).status_code == 404
    refused = await http.post("/v1/generate", json={"prompt": "", "model": "old"})
    assert "available: new" in refused.json()["detail"]
    await removed("new")
    await eventually(lambda: is_now(status("new"), 503))
    await forgetful.close()


async def is_now(status: Awaitable[int], expected: int) -> bool:
    return await status == expected


async def test_no_models_without_pools(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/models")).json() == {"object": "list", "data": []}
