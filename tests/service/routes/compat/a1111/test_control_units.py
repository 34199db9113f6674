"""Units of AUTOMATIC1111's ControlNet extension become controls of the model."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest
from webuiapi import WebUIApi

from models.spec.controls import ControlKind
from service.jobs.queue import Queue
from service.responses.warning_header import NAME
from tests.service.routes.compat.a1111.conftest import SDXL
from tests.service.standin import StandIn, picture

IMAGE = base64.b64encode(picture()).decode()
INPUT = base64.b64encode(picture(size=(64, 64))).decode()
PATH = "/sdapi/v1/txt2img"
EDGES = SDXL.model_copy(
    update={
        "controls": {"canny": ControlKind(), "Depth map": ControlKind()},
        "limits": SDXL.limits.model_copy(update={"max_controls": 2}),
    }
)


@pytest.fixture
async def edges(queue: Queue, sdxl: StandIn) -> StandIn:
    await queue.register("stand-in", EDGES, ready=True)
    return sdxl


def body(*units: Any, **fields: Any) -> dict[str, Any]:
    scripts = {"ControlNet": {"args": [*units]}}
    return {"prompt": "a cat", "sampler_name": "Euler", "alwayson_scripts": scripts, **fields}


async def test_units_become_controls(wire: httpx.AsyncClient, edges: StandIn) -> None:
    units = [
        {
            "enabled": True,
            "image": IMAGE,
            "model": "depth map [0123abcd]",
            "module": "none",
            "weight": 0.5,
            "guidance_start": 0.1,
            "guidance_end": 0.8,
            "control_mode": "Balanced",
            "resize_mode": "Just Resize",
            "pixel_perfect": True,
            "lowvram": False,
            "threshold_a": 64,
        },
        {"enabled": False, "model": "no-such-model", "module": "openpose"},
        {"input_image": IMAGE, "model": "canny", "module": "canny", "threshold_a": 100},
    ]
    answer = await wire.post(PATH, json=body(*units))
    assert answer.status_code == 200, answer.text
    assert NAME not in answer.headers
    depth, canny = edges.received[0].request["control"]
    assert await edges.store.get(depth.pop("image")) == picture()
    assert depth == {"name": "Depth map", "scale": 0.5, "start": 0.1, "end": 0.8}
    assert (canny["name"], canny["preprocess"], canny["scale"]) == ("canny", "canny", 1.0)


async def test_a_unit_without_an_image_takes_the_input(
    wire: httpx.AsyncClient, edges: StandIn
) -> None:
    unit = {"model": "canny", "image": {"image": None, "mask": None}}
    sent = body(unit, init_images=[INPUT], denoising_strength=0.5)
    answer = await wire.post("/sdapi/v1/img2img", json=sent)
    assert answer.status_code == 200, answer.text
    request = edges.received[0].request
    assert await edges.store.get(request["control"][0]["image"]) == picture(size=(64, 64))


async def test_values_without_effect_are_warnings(wire: httpx.AsyncClient, edges: StandIn) -> None:
    unit = {
        "model": "canny", "image": IMAGE, "module": "canny", "resize_mode": 1, "threshold_b": 90,
    }  # fmt: skip
    answer = await wire.post(PATH, json=body(unit))
    assert answer.status_code == 200, answer.text
    path = "alwayson_scripts.controlnet.args.0"
    for name in ("resize_mode", "threshold_b"):
        assert f"{path}.{name}: has no effect" in answer.headers[NAME]


REFUSED: list[tuple[Any, str, str]] = [
    ({"image": IMAGE}, "model", "must be Depth map or canny"),
    ({"image": IMAGE, "model": "tile"}, "model", "must be Depth map or canny"),
    ({"image": IMAGE, "model": "canny", "module": "openpose"}, "module", "preprocessed"),
    ({"image": IMAGE, "model": "canny", "control_mode": 1}, "control_mode", "Balanced"),
    ({"image": IMAGE, "model": "canny", "control_mode": [0]}, "control_mode", "Balanced"),
    ({"image": {"image": IMAGE, "mask": IMAGE}, "model": "canny"}, "mask", "not supported"),
    ({"model": "canny"}, "image", "must be an image in base64"),
    ({"model": "canny", "image": [IMAGE]}, "image", "must be an image in base64"),
    ({"image": IMAGE, "model": "canny", "weight": "x"}, "weight", "must be a number"),
    ({"image": IMAGE, "model": "canny", "guidance_end": 2}, "guidance_end", "at most 1"),
    ({"image": IMAGE, "model": "canny", "batch_images": "/a"}, "batch_images", "leave it out"),
]


async def test_unsupported_units_are_rejected(wire: httpx.AsyncClient, edges: StandIn) -> None:
    for unit, field, message in REFUSED:
        answer = await wire.post(PATH, json=body(unit))
        assert answer.status_code == 422, answer.text
        error = answer.json()["errors"]
        assert f"alwayson_scripts.controlnet.args.0.{field}: " in error and message in error
        assert not edges.received


@pytest.mark.parametrize("units", [[7], ["x"], [{}] * 17])
async def test_other_units_are_refused(
    wire: httpx.AsyncClient, edges: StandIn, units: list[Any]
) -> None:
    answer = await wire.post(PATH, json=body(*units))
    assert answer.status_code == 422 and "controlnet" in answer.json()["errors"]


async def test_model_without_controls_is_reported(
    wire: httpx.AsyncClient, queue: Queue, sdxl: StandIn
) -> None:
    await queue.register("stand-in", SDXL.model_copy(update={"controls": {}}), ready=True)
    answer = await wire.post(PATH, json=body({"image": IMAGE, "model": "canny"}))
    assert answer.status_code == 422 and "has no controls" in answer.json()["errors"]
    answer = await wire.post(PATH, json=body({"enabled": False}, None, False))
    assert answer.status_code == 200, answer.text


async def test_lists_of_the_extension_by_webuiapi(
    api: WebUIApi, edges: StandIn, wire: httpx.AsyncClient
) -> None:
    assert await asyncio.to_thread(api.controlnet_model_list) == ["Depth map", "canny"]
    assert await asyncio.to_thread(api.controlnet_module_list) == ["none", "canny"]
    assert await asyncio.to_thread(api.controlnet_version) == 3
    (kind,) = (await wire.get("/controlnet/control_types")).json()["control_types"].values()
    assert kind["model_list"] == ["None", "Depth map", "canny"]
    assert (await wire.get("/controlnet/settings")).json() == {"control_net_unit_count": 2}
    answer = await wire.get("/controlnet/model_list?update=true")
    assert answer.json() == {"model_list": ["Depth map", "canny"]}
