"""Hires fix and refiner in AUTOMATIC1111's `txt2img`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from webuiapi import WebUIApi

from models.spec.model_spec import ModelSpec
from models.spec.passes import denoising_steps
from models.spec.upscalers import Upscaler
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.routes.compat.a1111.bodies import TextToImage
from service.routes.compat.a1111.hires import with_passes
from service.settings.limits import LimitSettings
from tests.service.routes.compat.a1111.conftest import SDXL
from tests.service.standin import StandIn, picture
from workers.loading.upscalers import with_upscalers

REFINED = with_upscalers(
    SDXL.model_copy(update={"fields": SDXL.fields | {"refiner"}, "strength_rounds": "down"}),
    {"R-ESRGAN 4x+": Upscaler(scale=4, tile=64)},
)
IMAGE = base64.b64encode(picture(size=(64, 64))).decode()
SMALL = {"prompt": "a", "width": 64, "height": 48, "steps": 8}


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, REFINED) as pool:
        yield pool


@pytest.fixture
async def api(wire: httpx.AsyncClient) -> WebUIApi:
    address = f"{wire.base_url}/sdapi/v1"
    return await asyncio.to_thread(WebUIApi, baseurl=address, sampler="Euler", steps=8)


async def generate(wire: httpx.AsyncClient, pool: StandIn, **fields: Any) -> dict[str, Any]:
    answer = await wire.post("/sdapi/v1/txt2img", json={**SMALL, **fields})
    assert answer.status_code == 200, answer.text
    return pool.received[-1].request


async def test_webuiapi_enables_hires(api: WebUIApi, pool: StandIn) -> None:
    sent = {"width": 64, "height": 48, "enable_hr": True, "hr_scale": 1.5}
    await asyncio.to_thread(lambda: api.txt2img(prompt="a", denoising_strength=0.5, **sent))
    assert pool.received[0].request["hires"] == {
        "width": 96,
        "height": 80,
        "upscaler": "latent",
        "strength": 0.5,
        "num_inference_steps": 16,
    }
    assert pool.received[0].steps == 8 + 8


@pytest.mark.parametrize(
    ("fields", "size", "upscaler"),
    [
        ({}, (128, 96), "latent"),
        ({"hr_resize_x": 96}, (96, 80), "latent"),
        ({"hr_resize_y": 96, "hr_upscaler": "Lanczos"}, (128, 96), "lanczos"),
        ({"hr_resize_x": 96, "hr_resize_y": 80, "hr_upscaler": "None"}, (96, 80), "lanczos"),
        ({"hr_upscaler": "R-ESRGAN 4x+"}, (128, 96), "R-ESRGAN 4x+"),
        ({"hr_sampler_name": "Use same sampler", "hr_prompt": "a"}, (128, 96), "latent"),
    ],
)
async def test_sizes_and_upscalers(
    wire: httpx.AsyncClient,
    pool: StandIn,
    fields: dict[str, Any],
    size: tuple[int, int],
    upscaler: str,
) -> None:
    hires = (await generate(wire, pool, enable_hr=True, **fields))["hires"]
    assert (hires["width"], hires["height"]) == size
    assert (hires["upscaler"], hires["strength"]) == (upscaler, 0.75)


@pytest.mark.parametrize("spec", [SDXL, REFINED], ids=["rounded up", "rounded down"])
@pytest.mark.parametrize("strength", [0.1, 0.33, 0.7, 1.0])
def test_second_pass_runs_the_requested_steps(spec: ModelSpec, strength: float) -> None:
    roomy = spec.model_copy(update={"limits": spec.limits.model_copy(update={"max_steps": 1000})})
    for steps in (1, 7, 20):
        sent = {"enable_hr": True, "hr_second_pass_steps": steps, "denoising_strength": strength}
        hires = with_passes(TextToImage(**sent), roomy)["hires"]
        scheduled = hires["num_inference_steps"]
        assert denoising_steps(scheduled, strength, spec.strength_rounds) == steps


async def test_limits_count_the_steps_that_run(
    wire: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    """Thirty steps of a schedule of 300 count as thirty, as A1111 runs them."""
    roomy = SDXL.limits.model_copy(update={"max_steps": 1000})
    async with StandIn(queue, store, SDXL.model_copy(update={"limits": roomy})) as pool:
        sent = {"enable_hr": True, "hr_second_pass_steps": 30, "denoising_strength": 0.1}
        hires = (await generate(wire, pool, **sent))["hires"]
        assert hires["num_inference_steps"] > LimitSettings().max_steps
        assert pool.received[-1].steps == 8 + 30
        many = {**SMALL, **sent, "hr_second_pass_steps": 201, "denoising_strength": 0.5}
        response = await wire.post("/sdapi/v1/txt2img", json=many)
        assert response.json()["errors"].startswith("hr_second_pass_steps: must leave at most 200")


async def test_hires_is_off_despite_other_fields(wire: httpx.AsyncClient, pool: StandIn) -> None:
    sent = {"enable_hr": False, "hr_upscaler": "Latent (nearest)", "hr_prompt": "b"}
    request = await generate(wire, pool, denoising_strength=0, **sent)
    assert not request.keys() & {"hires", "strength", "refiner"}


@pytest.mark.parametrize(
    ("sent", "passes"), [({}, 2), ({"enable_hr": None}, 2), ({"enable_hr": False}, 1)]
)
async def test_false_switches_a_models_default_off(
    wire: httpx.AsyncClient, queue: Queue, store: Store, sent: dict[str, Any], passes: int
) -> None:
    spec = REFINED.model_copy(update={"defaults": {**REFINED.defaults, "hires": {"scale": 1.5}}})
    async with StandIn(queue, store, spec) as pool:
        for path, body in (("txt2img", {}), ("img2img", {"init_images": [IMAGE]})):
            answer = await wire.post(f"/sdapi/v1/{path}", json={**SMALL, **body, **sent})
            assert answer.status_code == 200, answer.text
            assert len([*pool.received[-1].passes()]) == passes


async def test_the_refiner_is_the_models(wire: httpx.AsyncClient, pool: StandIn) -> None:
    named = {"refiner_checkpoint": "sd_xl_refiner_1.0"}
    assert (await generate(wire, pool, **named))["refiner"] == {"switch": 0.8}
    switched = await generate(wire, pool, **named, refiner_switch_at=0.6)
    assert switched["refiner"] == {"switch": 0.6}
    assert "refiner" not in await generate(wire, pool, refiner_checkpoint="", refiner_switch_at=0.6)


async def test_upscalers_are_listed(wire: httpx.AsyncClient, pool: StandIn) -> None:
    listed = (await wire.get("/sdapi/v1/upscalers")).json()
    assert [upscaler["name"] for upscaler in listed] == ["Lanczos", "None", "R-ESRGAN 4x+"]
    modes = (await wire.get("/sdapi/v1/latent-upscale-modes")).json()
    assert modes == [{"name": "Latent"}]


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"hr_upscaler": "Latent (nearest)"}, "hr_upscaler", "must be Latent or Lanczos or None"),
        ({"hr_scale": 6}, "hr_scale", "must be 32 to 256 pixels"),
        ({"hr_resize_x": 100}, "hr_resize_x", "multiple of 16"),
        ({"hr_resize_x": 128, "hr_resize_y": 128}, "hr_resize_y", "other proportions"),
        ({"denoising_strength": 0}, "denoising_strength", "0.01 to 1"),
        ({"hr_second_pass_steps": 38}, "hr_second_pass_steps", "must be 37 at most with a deno"),
        ({"steps": 38}, "steps", "must be 37 at most with a denoising_strength of 0.75"),
        ({"steps": 51, "denoising_strength": 1}, "steps", "must be 50 at most"),
        ({"hr_second_pass_steps": 10**12}, "hr_second_pass_steps", "at most"),
        ({"steps": 10**12}, "steps", "at most"),
        ({"firstphase_width": 32}, "firstphase_width", "as width"),
        ({"firstphase_height": 32}, "firstphase_height", "as height"),
        ({"hr_sampler_name": "DDIM"}, "hr_sampler_name", "the first pass's value"),
        ({"hr_prompt": "b"}, "hr_prompt", "the first pass's value"),
        ({"hr_cfg": 3, "cfg_scale": 2}, "hr_cfg", "the first pass's guidance"),
    ],
)
async def test_invalid_field_has_its_api_name(
    wire: httpx.AsyncClient, pool: StandIn, fields: dict[str, Any], field: str, said: str
) -> None:
    response = await wire.post("/sdapi/v1/txt2img", json={**SMALL, "enable_hr": True, **fields})
    assert response.status_code == 422
    name, _, message = response.json()["errors"].partition(": ")
    assert name == field and said in message, response.json()
    assert not pool.received


async def test_img2img_has_none(wire: httpx.AsyncClient, pool: StandIn) -> None:
    body = {**SMALL, "init_images": [IMAGE], "enable_hr": True}
    response = await wire.post("/sdapi/v1/img2img", json=body)
    assert (
        response.json()["errors"]
        == "enable_hr: applies to txt2img only; send the larger width and height"
    )
