"""`txt2img` and `img2img`, tested by webuiapi and by requests of other clients."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import httpx
import pytest
from PIL import Image
from webuiapi import WebUIApi

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.responses.warning_header import NAME
from service.routes.compat.a1111.bodies import TextToImage
from tests.service.routes.compat.a1111.conftest import SDXL
from tests.service.standin import MODEL, SIZE_PX, SPEC, StandIn, picture

OPEN_WEBUI = {
    "prompt": "a cat",
    "batch_size": 2,
    "width": 64,
    "height": 96,
    "steps": 3,
    "negative_prompt": "a dog",
    "sampler_name": "DPM++ 2M",
    "scheduler": "Karras",
    "cfg_scale": 4.5,
}
"""Source: Open WebUI, backend/open_webui/routers/images.py."""
SILLY_TAVERN = {
    "url": "http://localhost:8000",
    "auth": "anybody:atl_secret",
    "prompt": "a cat",
    "negative_prompt": "",
    "sampler_name": "Euler a",
    "scheduler": "Automatic",
    "steps": 3,
    "cfg_scale": 7,
    "width": 64,
    "height": 64,
    "restore_faces": False,
    "enable_hr": False,
    "hr_upscaler": "Latent",
    "hr_scale": 2,
    "hr_additional_modules": [],
    "denoising_strength": 0.7,
    "hr_second_pass_steps": 0,
    "override_settings": {"CLIP_stop_at_last_layers": 1},
    "override_settings_restore_afterwards": True,
    "clip_skip": 1,
    "save_images": True,
    "send_images": True,
    "do_not_save_grid": False,
    "do_not_save_samples": False,
}
"""Source: SillyTavern, public/scripts/extensions/stable-diffusion/index.js, and
src/endpoints/stable-diffusion.js, which sends on what its page has sent."""
KRITA = {
    "prompt": "a cat",
    "negative_prompt": "a dog",
    "sampler_name": "DDIM",
    "steps": 3,
    "cfg_scale": 7.0,
    "width": 64,
    "height": 64,
    "batch_size": 1,
    "n_iter": 1,
    "seed": 7,
    "restore_faces": False,
    "tiling": False,
    "override_settings": {"sd_model_checkpoint": "sdxl-demo", "sd_vae": "Automatic"},
    "override_settings_restore_afterwards": False,
    "alwayson_scripts": {},
    "init_images": [],
    "denoising_strength": 0.5,
    "include_init_images": False,
    "resize_mode": 0,
}
"""A request as sent by Krita's plugin for AUTOMATIC1111."""


def image(size: tuple[int, int] = (64, 64)) -> Image.Image:
    return Image.open(io.BytesIO(picture(size=size)))


async def test_txt2img_by_webuiapi_is_an_ordinary_job(api: WebUIApi, sdxl: StandIn) -> None:
    result = await asyncio.to_thread(
        api.txt2img,
        prompt="a cat",
        negative_prompt="a dog",
        seed=7,
        sampler_name="DPM++ 2M",
        scheduler="Karras",
        batch_size=2,
        n_iter=2,
        cfg_scale=2.5,
        width=64,
        height=96,
    )
    (job,) = sdxl.received
    assert [image.size for image in result.images] == [(SIZE_PX, SIZE_PX)] * 4
    assert result.info["all_seeds"] == [7, 8, 9, 10]
    assert result.parameters["prompt"] == "a cat"
    fields = {name: job.request[name] for name in ("prompt", "negative_prompt", "width", "height")}
    assert fields == {"prompt": "a cat", "negative_prompt": "a dog", "width": 64, "height": 96}
    assert (job.request["seed"], job.request["guidance_scale"], job.images) == (7, 2.5, 4)
    assert job.request["num_inference_steps"] == 3
    assert job.request["scheduler"] == {"name": "dpmpp_2m", "use_karras_sigmas": True}


async def test_info_has_a_text_of_parameters_for_each_image(api: WebUIApi, sdxl: StandIn) -> None:
    result = await asyncio.to_thread(
        api.txt2img, prompt="a cat", seed=7, n_iter=2, width=64, height=64
    )
    first, second = result.info["infotexts"]
    assert first.startswith("a cat\nSteps: 3, Sampler: Euler, ") and "Seed: 7" in first
    assert "Seed: 8" in second and "Size: 64x64" in second


async def test_cfg_scale_is_left_out_of_a_model_without_guidance(
    queue: Queue, store: Store, api: WebUIApi
) -> None:
    defaults = {name: value for name, value in SPEC.defaults.items() if name != "guidance_scale"}
    fields = SPEC.fields - {"guidance_scale"}
    plain = SPEC.model_copy(update={"fields": fields, "defaults": defaults})
    async with StandIn(queue, store, plain) as pool:
        await asyncio.to_thread(api.txt2img, prompt="a", width=64, height=64, cfg_scale=7)
    assert "guidance_scale" not in pool.received[0].request


async def test_seed_minus_one_is_random(api: WebUIApi, sdxl: StandIn) -> None:
    drawn = [
        (await asyncio.to_thread(api.txt2img, prompt="a", width=64, height=64)).info["seed"]
        for _ in range(2)
    ]
    assert drawn[0] != drawn[1] and min(drawn) >= 0


async def test_img2img_by_webuiapi(api: WebUIApi, sdxl: StandIn) -> None:
    await asyncio.to_thread(
        api.img2img, images=[image()], prompt="a", width=64, height=64, denoising_strength=0.5
    )
    (job,) = sdxl.received
    assert job.request["strength"] == 0.5 and "mask_image" not in job.request
    sent = Image.open(io.BytesIO(await sdxl.store.get(job.request["image"])))
    assert sent.convert("RGB").tobytes() == image().convert("RGB").tobytes()


async def test_inpainting_by_webuiapi(api: WebUIApi, sdxl: StandIn) -> None:
    await asyncio.to_thread(
        api.img2img,
        images=[image()],
        mask_image=image().convert("L"),
        mask_blur=0,
        inpainting_fill=1,
        inpaint_full_res=False,
        prompt="a",
        width=64,
        height=64,
    )
    (job,) = sdxl.received
    assert job.request["mask_image"] and job.request["strength"] == 0.75


async def post(wire: httpx.AsyncClient, body: dict[str, Any], of: str = "txt2img") -> Any:
    answer = await wire.post(f"/sdapi/v1/{of}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_request_of_open_webui(wire: httpx.AsyncClient, sdxl: StandIn) -> None:
    answer = await post(wire, OPEN_WEBUI)
    (job,) = sdxl.received
    assert len(answer["images"]) == job.images == 2
    assert base64.b64decode(answer["images"][0]).startswith(b"\x89PNG")
    assert job.request["guidance_scale"] == 4.5


async def test_silly_taverns_request(wire: httpx.AsyncClient, sdxl: StandIn) -> None:
    answer = await post(wire, SILLY_TAVERN)
    (job,) = sdxl.received
    assert "atl_secret" not in json.dumps(answer)
    assert job.request["scheduler"] == {"name": "euler_ancestral"}
    assert "negative_prompt" not in job.request and "strength" not in job.request


async def test_silly_tavern_request_without_a_sampler(
    wire: httpx.AsyncClient, sdxl: StandIn, pool: StandIn
) -> None:
    unchosen = SILLY_TAVERN | {"sampler_name": "DDIM", "scheduler": "normal", "eta": 1}
    for name in ("sdxl-demo", MODEL):
        await post(wire, unchosen | {"override_settings": {"sd_model_checkpoint": name}})
    assert sdxl.received[0].request["scheduler"] == {"name": "ddim"}
    assert "scheduler" not in pool.received[0].request


async def test_request_of_krita(wire: httpx.AsyncClient, sdxl: StandIn, pool: StandIn) -> None:
    body = KRITA | {"init_images": [base64.b64encode(picture(size=(64, 64))).decode()]}
    await post(wire, body, "img2img")
    (job,) = sdxl.received
    assert job.request["scheduler"] == {"name": "ddim"} and job.request["strength"] == 0.5


async def test_prompt_weights_apply_if_the_model_supports_them(
    wire: httpx.AsyncClient, sdxl: StandIn, pool: StandIn
) -> None:
    for name in ("sdxl-demo", MODEL):
        options = {"sd_model_checkpoint": name}
        await post(wire, {"prompt": "a (red:1.2) cat", "override_settings": options})
    assert sdxl.received[0].request["prompt_syntax"] == "weighted"
    assert "prompt_syntax" not in pool.received[0].request
    assert pool.received[0].request["prompt"] == "a (red:1.2) cat"


async def test_null_is_the_default_of_any_field(wire: httpx.AsyncClient, sdxl: StandIn) -> None:
    """Clients in typed languages send every field they know, as null."""
    nulls = dict.fromkeys(TextToImage.model_fields)
    answer = await wire.post("/sdapi/v1/txt2img", json=nulls)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["images"]) == sdxl.received[0].images == 1


async def test_empty_mask_counts_as_absent(wire: httpx.AsyncClient, sdxl: StandIn) -> None:
    image = base64.b64encode(picture(size=(64, 64))).decode()
    await post(wire, {"init_images": [image], "mask": "", "mask_blur": 4}, "img2img")
    assert "mask_image" not in sdxl.received[0].request


async def test_a_refusal_proposes_a_value_of_the_fields_own_kind(
    wire: httpx.AsyncClient, sdxl: StandIn
) -> None:
    for field, proposed in {"resize_mode": "0", "tiling": "false", "styles": "[]"}.items():
        response = await wire.post("/sdapi/v1/txt2img", json={field: 2})
        assert response.json()["errors"].endswith(f"leave it out or send {proposed}")
    response = await wire.post("/sdapi/v1/txt2img", json={"infotext": "Steps: 3"})
    assert response.json()["errors"] == "infotext: is not supported; leave it out"


async def test_images_can_be_left_out_of_the_answer(wire: httpx.AsyncClient, sdxl: StandIn) -> None:
    body = {"prompt": "a", "send_images": False}
    assert (await post(wire, body))["images"] == [] and len(sdxl.received) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tiling", True),
        ("subseed_strength", 0.5),
        ("s_churn", 1.0),
        ("styles", ["mine"]),
        ("script_name", "X/Y/Z plot"),
        ("refiner_checkpoint", "x"),
        ("alwayson_scripts", {"ControlNet": {"args": [{"enabled": True}]}}),
        ("alwayson_scripts", 7),
        ("override_settings", {"sd_vae": "mine"}),
        ("override_settings", {"what": 1}),
        ("override_settings", {"sd_model_checkpoint": 7}),
        ("colour", 1),
        ("width", 10),
        ("steps", 1000),
        ("cfg_scale", -1),
        ("batch_size", 100),
        ("n_iter", 100),
        ("seed", -2),
        ("sampler_name", "Heun"),
        ("scheduler", "Turbo"),
        ("alwayson_scripts", {"Seed": {"args": [-1, True, 3, 0.5, 0, 0]}}),
        ("alwayson_scripts", {"ADetailer": {"args": [{"ad_model": "face_yolov8n.pt"}]}}),
        ("alwayson_scripts", {"a": [{"enabled": False}, {"enabled": True}]}),
        ("override_settings", {"filter_nsfw": True}),
        ("eta", 0.5),
        ("prompt", "<hypernet:a:1>"),
        ("prompt", "<lora:a:much>"),
        ("prompt", "<lora:a:1:0.5>"),
        ("prompt", "<lora:nobody:1>"),
    ],
)
async def test_unsupported_field_is_named(
    wire: httpx.AsyncClient, sdxl: StandIn, field: str, value: Any
) -> None:
    body = {"prompt": "a", "sampler_name": "Euler a", field: value}
    answer = await wire.post("/sdapi/v1/txt2img", json=body)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert set(problem) == {"error", "detail", "body", "errors"}
    assert field in problem["errors"].partition(":")[0], problem
    assert not sdxl.received


async def test_no_field_of_another_api_is_proposed(wire: httpx.AsyncClient, sdxl: StandIn) -> None:
    response = await wire.post("/sdapi/v1/txt2img", json={"cfg": 7, "step": 3, "denoise": 0.5})
    assert response.json()["errors"] == (
        "cfg: there is no such field; step: there is no such field; did you mean steps?;"
        " denoise: there is no such field"
    )


async def test_euler_a_without_noise_is_euler(
    wire: httpx.AsyncClient, sdxl: StandIn, pool: StandIn
) -> None:
    """Clients copy `eta: 0` from AUTOMATIC1111's examples; this server's sampler has the noise of
    1."""
    for name, eta in (("Euler a", 0), ("k_euler_a", 0.0), ("Euler a", 1), ("Euler a", None)):
        options = {"sd_model_checkpoint": "sdxl-demo"}
        fields = {"sampler_name": name, "eta": eta, "override_settings": options}
        await post(wire, fields)
    names = [job.request["scheduler"]["name"] for job in sdxl.received]
    assert names == ["euler", "euler", "euler_ancestral", "euler_ancestral"]
    await post(wire, {"sampler_name": "Euler a", "eta": 0})
    assert "scheduler" not in pool.received[0].request


async def test_disabled_extensions_are_ignored(wire: httpx.AsyncClient, sdxl: StandIn) -> None:
    off = {"ADetailer": {"args": [False]}, "ControlNet": {"args": []}, "a": {"args": [None]}}
    off |= {"b": [{"enabled": False}], "ADetailer": [True, False, {"ad_model": "None"}]}
    await post(wire, {"prompt": "a", "alwayson_scripts": off})


async def test_arguments_of_built_in_scripts_are_fields(
    wire: httpx.AsyncClient, sdxl: StandIn
) -> None:
    """As extensions show a request's payload, and people copy it."""
    scripts = {
        "API payload": {"args": []},
        "Refiner": {"args": [False, "", 0.8]},
        "Sampler": {"args": [3, "DPM++ 2M", "Polyexponential"]},
        "Seed": {"args": [7, False, -1, 0.5, 0, 0]},
    }
    await post(wire, {"prompt": "a", "steps": 4, "seed": -1, "alwayson_scripts": scripts})
    request = sdxl.received[0].request
    assert (request["num_inference_steps"], request["seed"]) == (3, 7)
    assert request["scheduler"] == {
        "name": "dpmpp_2m",
        "timestep_spacing": "linspace",
        "use_exponential_sigmas": True,
    }


async def test_forges_scale_of_distilled_guidance(
    wire: httpx.AsyncClient, sdxl: StandIn, queue: Queue
) -> None:
    scales = {"distilled_cfg_scale": 3.5, "cfg_scale": 1, "hr_distilled_cfg": 3.5}
    answer = await wire.post("/sdapi/v1/txt2img", json={"prompt": "a", **scales})
    assert sdxl.received[0].request["guidance_scale"] == 1
    assert "distilled_cfg_scale: has no effect" in answer.headers[NAME]
    spec = SDXL.model_copy(update={"fields": SDXL.fields | {"true_cfg_scale"}})
    await queue.register("stand-in", spec, ready=True)
    await post(wire, {"prompt": "a", **scales})
    request = sdxl.received[1].request
    assert (request["guidance_scale"], request["true_cfg_scale"]) == (3.5, 1)


async def test_flow_models_accept_only_euler(wire: httpx.AsyncClient, pool: StandIn) -> None:
    for body in ({"sampler_name": "Euler", "scheduler": "Simple"}, {"scheduler": "Automatic"}, {}):
        await post(wire, {"prompt": "a", **body})
    assert all("scheduler" not in job.request for job in pool.received)
    for body in ({"sampler_name": "LCM"}, {"sampler_name": "Euler", "scheduler": "Karras"}):
        answer = await wire.post("/sdapi/v1/txt2img", json={"prompt": "a", **body})
        assert answer.status_code == 422 and MODEL in answer.json()["detail"]


async def test_default_sampler_works_with_any_model(wire: httpx.AsyncClient, pool: StandIn) -> None:
    plain = await asyncio.to_thread(WebUIApi, baseurl=f"{wire.base_url}/sdapi/v1")
    made = await asyncio.to_thread(plain.txt2img, prompt="a cat", width=64, height=64)
    assert made.image.size == (SIZE_PX, SIZE_PX)
    assert "scheduler" not in pool.received[0].request


async def test_unknown_path_has_the_same_error_format(wire: httpx.AsyncClient) -> None:
    answer = await wire.get("/sdapi/v1/nothing")
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "detail", "body", "errors"}
