"""Values as clients of each API write them: numbers in texts, empty fields, sizes and formats."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from service.responses.warning_header import NAME
from tests.service.standin import MODEL, StandIn, picture

Fields = dict[str, Any]

PNG = picture(size=(64, 64))
IMAGE = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
SQUARE = {"width": 64, "height": 64}

OPENAI: dict[str, tuple[Fields, Fields]] = {
    "a star in the size": ({"size": "64*64"}, SQUARE),
    "an X in the size": ({"size": "64X64"}, SQUARE),
    "spaces in the size": ({"size": "64 x 64"}, SQUARE),
    "a sign in the size": ({"size": "64\u00d764"}, SQUARE),
    "empty texts": ({"size": "", "quality": "", "model": "", "user": "", "n": ""}, {}),
    "numbers in texts": (
        {"n": "2", "seed": "7", "guidance_scale": "2.5", "width": "64", "height": "64"},
        {"num_images": 2, "seed": 7, "guidance_scale": 2.5, **SQUARE},
    ),
    "whole floats": ({"seed": 7.0, "num_inference_steps": 3.0}, {"seed": 7}),
    "another name of JPEG": ({"output_format": "JPG"}, {"output.format": "jpeg"}),
    "empty fields of other servers": ({"loras_v2": [], "controlnet": None, "vae": ""}, {}),
    "a switch of another server that is off": ({"watermark": False}, {}),
    "capitals and spaces": (
        {"size": " 64x64 ", "quality": "HD", "response_format": "URL", "background": "Auto"},
        SQUARE,
    ),
    "values of fields without effect": ({"moderation": "none", "size": "AUTO"}, {"width": 96}),
    "an aspect ratio": ({"aspect_ratio": "1:1"}, SQUARE),
    "the image's aspect ratio": ({"aspect_ratio": "auto"}, {"width": 96, "height": 64}),
    "the same size twice": ({"size": "64x64", "width": 64, "aspect_ratio": "2:1"}, SQUARE),
    "several images": ({"image": [IMAGE, IMAGE]}, {"image": PNG, "reference_images.0": PNG}),
    "no images": ({"image": []}, {}),
    "extra_body of Python's client": ({"extra_body": {"seed": 7}}, {"seed": 7}),
}
A1111: dict[str, tuple[Fields, Fields]] = {
    "switches in texts and numbers": (
        {"enable_hr": "false", "send_images": 1, "disable_extra_networks": 0, "tiling": "False"},
        {},
    ),
    "empty texts": ({"seed": "", "batch_size": "", "hr_scale": "", "steps": ""}, {}),
    "PHP's empty objects": ({"override_settings": [], "alwayson_scripts": []}, {}),
    "no choice of a sampler": ({"sampler_name": "Default", "scheduler": "None"}, {}),
    "a switch of SD.Next that is off": ({"detailer_enabled": False}, {}),
    "a script that is off": ({"alwayson_scripts": {"Tiles": {"args": ["False", 64]}}}, {}),
    "options that do not change the image": (
        {
            "override_settings": {
                "randn_source": "CPU",
                "jpeg_quality": 80,
                "forge_preset": "flux",
                "forge_additional_modules": ["ae.safetensors", "t5xxl_fp16.safetensors"],
                "emphasis": "Original",
                "img2img_color_correction": False,
                "token_merging_ratio": 0.0,
                "initial_noise_multiplier": 1.0,
            }
        },
        {},
    ),
}
HUGGING_FACE: dict[str, tuple[Fields, Fields]] = {
    "PHP's empty object": ({"inputs": "a", "parameters": []}, {"prompt": "a"}),
    "numbers in texts": (
        {"inputs": "a", "parameters": {"width": "64", "height": "64", "seed": "7"}},
        {"seed": 7, **SQUARE},
    ),
    "diffusers' arguments": (
        {
            "inputs": ["a cat"],
            "parameters": {
                "num_images_per_prompt": 1,
                "output_type": "pil",
                "negative_prompt": ["a dog"],
            },
        },
        {"prompt": "a cat", "negative_prompt": "a dog"},
    ),
}
REPLICATE: dict[str, tuple[Fields, Fields]] = {
    "SDXL's inputs": (
        {
            "prompt": "a",
            "refine": "no_refiner",
            "high_noise_frac": 0.8,
            "apply_watermark": True,
            "lora_scale": 0.6,
            "replicate_weights": "",
        },
        {},
    ),
    "numbers in texts": ({"prompt": "a", "seed": "7", "num_outputs": "1"}, {"seed": 7}),
    "the format's name": ({"prompt": "a", "output_format": "JPG"}, {"output.format": "jpeg"}),
    "Kontext's image": ({"prompt": "a", "input_image": IMAGE}, {"image": PNG}),
    "a list of images": (
        {"prompt": "a", "image_input": [IMAGE, IMAGE]},
        {"image": PNG, "reference_images.0": PNG},
    ),
}
FAL: dict[str, tuple[Fields, Fields]] = {
    "numbers in texts": ({"prompt": "a", "seed": "7", "num_images": "1"}, {"seed": 7}),
    "no further networks": (
        {"prompt": "a", "loras": [], "embeddings": [], "controlnets": [], "ip_adapters": []},
        {},
    ),
    "the format's name": ({"prompt": "a", "output_format": "PNG"}, {"output.format": "png"}),
}


def value_at(request: Fields, path: str) -> Any:
    """Return a nested value; the path's parts are names and list indices."""
    value: Any = request
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


async def check(pool: StandIn, answer: httpx.Response, expected: Fields) -> None:
    """Check the fields of the last job."""
    assert answer.status_code in (200, 201), answer.text
    while not pool.received:  # a prediction's answer may precede its worker's claim
        await pool.has_claimed.wait()
    request = pool.received.pop().request
    pool.has_claimed.clear()
    for path, value in expected.items():
        content = value_at(request, path)
        if isinstance(value, bytes):
            content = await pool.store.get(content)
        assert content == value, path


@pytest.mark.parametrize(
    ("path", "cases", "inside"),
    [
        ("/v1/images/generations", OPENAI, None),
        ("/sdapi/v1/txt2img", A1111, None),
        (f"/hf/{MODEL}", HUGGING_FACE, None),
        ("/v1/predictions", REPLICATE, "input"),
        (f"/fal/run/{MODEL}", FAL, None),
    ],
    ids=["openai", "automatic1111", "hugging face", "replicate", "fal"],
)
async def test_values_are_read_as_clients_write_them(
    path: str,
    cases: dict[str, tuple[Fields, Fields]],
    inside: str | None,
    http: httpx.AsyncClient,
    pool: StandIn,
) -> None:
    for name, (fields, expected) in cases.items():
        body = {inside: fields, "version": MODEL} if inside else {"prompt": "a", **fields}
        if path.startswith("/hf/"):
            del body["prompt"]
        answer = await http.post(path, json=body)
        assert answer.status_code < 300, (name, answer.text)
        await check(pool, answer, expected)


@pytest.mark.parametrize("seed", [-1, "-1", -1.0])
async def test_the_seed_of_minus_one_is_a_random_one(
    seed: Any, http: httpx.AsyncClient, pool: StandIn
) -> None:
    answer = await http.post("/v1/images/generations", json={"prompt": "a", "seed": seed})
    assert answer.status_code == 200, answer.text
    assert pool.received[0].request["seed"] >= 0


@pytest.mark.parametrize("text", ["", "null", "undefined"])
async def test_texts_of_a_form_without_a_value_are_absent(
    text: str, http: httpx.AsyncClient, pool: StandIn
) -> None:
    form = {"prompt": "a", "n": text, "size": "64*64", "seed": text, "strength": text, "mask": text}
    answer = await http.post("/v1/images/edits", data=form, files={"image": PNG})
    await check(pool, answer, {"num_images": 1, "strength": 0.6, **SQUARE})


@pytest.mark.parametrize("text", [IMAGE, IMAGE.partition(",")[2]], ids=["data URI", "base64"])
@pytest.mark.parametrize("part", ["image", "images[]"])
async def test_an_image_of_a_form_may_be_a_text(
    part: str, text: str, http: httpx.AsyncClient, pool: StandIn
) -> None:
    files = {"prompt": (None, "a"), part: (None, text)}
    await check(pool, await http.post("/v1/images/edits", files=files), {"image": PNG, **SQUARE})


@pytest.mark.parametrize(
    "images",
    [
        {"images": [{"image_url": IMAGE}, {"image_url": {"url": IMAGE}}]},
        {"image": [IMAGE, IMAGE.partition(",")[2]]},
    ],
    ids=["OpenAI", "other engines"],
)
async def test_an_edit_may_be_json(images: Fields, http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await http.post("/v1/images/edits", json={"prompt": "a", **images})
    await check(pool, answer, {"image": PNG, "reference_images.0": PNG, **SQUARE})


@pytest.mark.parametrize(
    ("images", "param", "message"),
    [
        ({}, "images", "send at least one image, as a data URI"),
        ({"images": [{"file_id": "file-1"}]}, "images.0", "uploaded files cannot be referenced"),
        ({"image": 7}, "image.0", "must have an image_url, a data URI or a URL"),
        ({"image": IMAGE, "mask": {"file_id": "a"}}, "mask", "uploaded files cannot be"),
        ({"image": IMAGE, "mask": "data:,a"}, "mask", "base64"),
    ],
)
async def test_edits_as_json_without_an_image_are_refused(
    images: Fields, param: str, message: str, http: httpx.AsyncClient, pool: StandIn
) -> None:
    answer = await http.post("/v1/images/edits", json={"prompt": "a", **images})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and message in error["message"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": "many"}, "seed: must be a whole number"),
        ({"seed": 7.5}, "seed: must be a whole number"),
        ({"size": "64/64"}, "size: write WIDTHxHEIGHT"),
        ({"refine": "expert_ensemble_refiner"}, "refine: there is no such field"),
        ({"no_such_field": 1}, "no_such_field: there is no such field"),
        ({"aspect_ratio": "wide"}, "aspect_ratio: must be WIDTH:HEIGHT, such as 16:9"),
        ({"size": "64x64", "width": 32}, "width: is also given as size"),
        ({"image": [IMAGE], "reference_images": [IMAGE]}, "reference_images: cannot be combined"),
    ],
)
async def test_other_values_are_refused(
    fields: Fields, message: str, http: httpx.AsyncClient, pool: StandIn
) -> None:
    answer = await http.post("/v1/images/generations", json={"prompt": "a", **fields})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


async def test_replicates_adapters_are_named(http: httpx.AsyncClient, pool: StandIn) -> None:
    inputs = {"prompt": "a", "lora_weights": "owner/ink", "lora_scale": 0.5}
    answer = await http.post("/v1/predictions", json={"version": MODEL, "input": inputs})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "input.lora_weights"


async def test_a_watermark_is_a_warning(http: httpx.AsyncClient, pool: StandIn) -> None:
    inputs = {"prompt": "a", "apply_watermark": True, "extra_lora": ""}
    answer = await http.post("/v1/predictions", json={"version": MODEL, "input": inputs})
    assert answer.headers[NAME] == (
        "input.apply_watermark: has no effect; no output has a visible watermark"
    )


@pytest.mark.parametrize(
    "title", [f"{MODEL}.safetensors", f"{MODEL} [0123abcd]", f"{MODEL}.safetensors [0123abcd]"]
)
async def test_checkpoints_of_automatic1111_have_titles(
    title: str, http: httpx.AsyncClient, pool: StandIn
) -> None:
    body = {
        "prompt": "a",
        "override_settings": {"sd_model_checkpoint": title},
        "client_id": None,
        "hr_extra": "",
    }
    answer = await http.post("/sdapi/v1/txt2img", json=body)
    assert answer.status_code == 200, answer.text


async def test_whole_floats_of_the_native_api_are_integers(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    body = {"model": MODEL, "prompt": "a", "seed": 7.0, "width": 64.0, "height": 64}
    answer = await http.post("/v1/generate", json=body, headers={"Prefer": "wait=10"})
    await check(pool, answer, {"seed": 7, **SQUARE})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": MODEL}, "name the model in override_settings.sd_model_checkpoint"),
        ({"init_images": [IMAGE]}, "send init_images and mask to /sdapi/v1/img2img"),
        ({"num_inference_steps": 3}, "did you mean steps?"),
        ({"restore_faces": "true"}, "restore_faces: is not supported"),
        ({"override_settings": {"emphasis": "None"}}, 'leave it out or send "Original"'),
    ],
)
async def test_fields_of_other_apis_have_advice_in_automatic1111s(
    fields: Fields, message: str, http: httpx.AsyncClient, pool: StandIn
) -> None:
    answer = await http.post("/sdapi/v1/txt2img", json={"prompt": "a", **fields})
    assert answer.status_code == 422 and message in answer.json()["detail"]


async def test_messages_have_the_values_of_json(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await http.post(f"/fal/run/{MODEL}", json={"prompt": "a", "sync_mode": True})
    assert answer.json()["detail"] == "sync_mode: must be false"
