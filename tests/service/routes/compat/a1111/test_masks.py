"""Masks of `img2img`: webuiapi with its defaults, and AUTOMATIC1111's options."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from webuiapi import WebUIApi

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.recipes.files import embed, read_recipe
from service.recipes.recipe import Recipe
from tests.service import standin
from tests.service.routes.compat.a1111.conftest import SDXL
from tests.service.standin import StandIn, picture

WIDTH, HEIGHT = 120, 80
BOX = (30, 20, 60, 50)
PLAIN = {"mask_blur": 0, "inpainting_fill": 1, "inpaint_full_res": False}
"""Options that leave an image and its mask unchanged."""


def image() -> Image.Image:
    """An image of noise, so that all pixels differ."""
    return Image.fromarray(
        np.random.default_rng(7).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8), "RGB"
    )


def mask(box: tuple[int, int, int, int] | None = BOX) -> Image.Image:
    made = Image.new("RGB", (WIDTH, HEIGHT))
    if box:
        made.paste("white", box)
    return made


def file_of(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def body(**further: Any) -> dict[str, Any]:
    fields = {"prompt": "a", "init_images": [file_of(image())], "mask": file_of(mask())}
    return fields | {"width": 64, "height": 64} | further


async def input_image(pool: StandIn, field: str) -> Image.Image:
    """Load an input image of the last job."""
    data = await pool.store.get(pool.received[-1].request[field])
    return Image.open(io.BytesIO(data))


async def test_webuiapi_inpaints_with_its_defaults(api: WebUIApi, sdxl: StandIn) -> None:
    made = await asyncio.to_thread(
        api.img2img, images=[image()], mask_image=mask(), prompt="a", width=64, height=64
    )
    before, after = np.asarray(image()), np.asarray(made.image)
    changed = (before != after).any(axis=-1)
    assert after.shape == before.shape and changed[25:45, 35:55].any()
    edge = 3 * 4  # three standard deviations of the mask's blur; Pillow's tails are shorter
    changed[20 - edge : 50 + edge, 30 - edge : 60 + edge] = False
    assert not changed.any()
    (job,) = sdxl.received
    assert (job.request["width"], job.request["height"]) == (64, 64)
    assert (
        (await input_image(sdxl, "image")).size
        == (await input_image(sdxl, "mask_image")).size
        == (64, 64)
    )


async def test_response_has_the_generated_pixels_inside_the_mask(
    wire: httpx.AsyncClient, sdxl: StandIn
) -> None:
    fields = body(mask_blur=0, inpainting_fill=1, batch_size=2)
    answer = await wire.post("/sdapi/v1/img2img", json=fields)
    assert answer.status_code == 200, answer.text
    files = answer.json()["images"]
    expected = image()
    made = Image.open(io.BytesIO(picture())).resize((30, 30), Image.Resampling.LANCZOS)
    expected.paste(made, BOX)
    assert len(files) == 2
    for file in files:
        result = Image.open(io.BytesIO(base64.b64decode(file)))
        assert result.tobytes() == expected.tobytes()
    part = image().resize((64, 64), Image.Resampling.LANCZOS, box=BOX)
    assert (await input_image(sdxl, "image")).tobytes() == part.tobytes()


async def test_response_keeps_the_recipe(
    wire: httpx.AsyncClient, sdxl: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(generator="Atelier 1", request={"prompt": "a", "seed": 7})
    file = embed(picture(), "image/png", recipe)
    monkeypatch.setattr(standin, "picture", lambda *_: file)
    answer = await wire.post("/sdapi/v1/img2img", json=body())
    assert read_recipe(base64.b64decode(answer.json()["images"][0])) == recipe


async def test_unchanged_image_and_mask_are_sent_as_received(
    wire: httpx.AsyncClient, sdxl: StandIn
) -> None:
    fields = body(**PLAIN)
    answer = await wire.post("/sdapi/v1/img2img", json=fields)
    assert base64.b64decode(answer.json()["images"][0]) == picture()
    request = sdxl.received[0].request
    assert await sdxl.store.get(request["image"]) == base64.b64decode(fields["init_images"][0])
    assert await sdxl.store.get(request["mask_image"]) == base64.b64decode(fields["mask"])


async def test_whole_image_is_inpainted_under_a_modified_mask(
    wire: httpx.AsyncClient, sdxl: StandIn
) -> None:
    for further, grey in (
        ({"mask_blur": 4}, lambda levels: 100 < levels[35, 30] < 160),
        ({"inpainting_mask_invert": 1}, lambda levels: levels[35, 45] == 0 and levels[0, 0] == 255),
        (
            {"mask_blur": None, "mask_blur_x": 0, "mask_blur_y": 9},
            lambda blurred: blurred[35, 29] == 0,
        ),
    ):
        answer = await wire.post("/sdapi/v1/img2img", json=body(**{**PLAIN, **further}))
        assert base64.b64decode(answer.json()["images"][0]) == picture()
        levels = np.asarray((await input_image(sdxl, "mask_image")).convert("L"))
        assert levels.shape == (HEIGHT, WIDTH) and grey(levels)
    await wire.post("/sdapi/v1/img2img", json=body(**{**PLAIN, "inpainting_fill": 0}))
    filled = await input_image(sdxl, "image")
    assert filled.size == (64, 64)
    assert filled.tobytes() != image().resize((64, 64), Image.Resampling.LANCZOS).tobytes()


@pytest.mark.parametrize(
    ("further", "field"),
    [
        ({"inpainting_fill": 2}, "inpainting_fill"),
        ({"mask": file_of(mask(None))}, "mask"),
        ({"mask": "iVBORw0KGgo="}, "mask"),
        ({"init_images": ["iVBORw0KGgo="]}, "init_images"),
        ({"mask_round": False}, "mask_round"),
        ({"mask_blur": -1}, "mask_blur"),
        ({"width": 10}, "width"),
        ({"width": 0}, "width"),
        ({"width": 10**9}, "width"),
    ],
)
async def test_unsupported_mask_options_are_named(
    wire: httpx.AsyncClient, sdxl: StandIn, further: dict[str, Any], field: str
) -> None:
    answer = await wire.post("/sdapi/v1/img2img", json=body(**further))
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"].startswith(f"{field}: ")
    assert not sdxl.received


async def test_repeated_inpainting_request_returns_the_same_response(
    wire: httpx.AsyncClient, sdxl: StandIn
) -> None:
    headers = {"Idempotency-Key": "mine"}
    answers = [
        await wire.post("/sdapi/v1/img2img", json=body(seed=7), headers=headers) for _ in range(2)
    ]
    assert answers[0].json()["images"] == answers[1].json()["images"]
    assert len(sdxl.received) == 1


async def test_omitted_sizes_default_to_the_models(
    wire: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    inpaints = SDXL.model_copy(update={"task_defaults": {"inpainting": {"width": 64}}})
    async with StandIn(queue, store, inpaints) as pool:
        answer = await wire.post("/sdapi/v1/img2img", json=body(width=None, height=None))
        assert answer.status_code == 200, answer.text
        assert (await input_image(pool, "image")).size == (64, SDXL.defaults["height"])
