"""OpenAI's image endpoints, tested by the OpenAI SDK."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError
from PIL import Image

from service.jobs.model.job import JobError, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.eventually import eventually
from tests.service.openai_clients import openai_client
from tests.service.routes.compat.openai.conftest import INPAINTING
from tests.service.standin import MODEL, SIZE_PX, SPEC, StandIn, picture


def clear(size: tuple[int, int], box: tuple[int, int, int, int]) -> bytes:
    """A mask as OpenAI's clients make it: transparent in a box, opaque elsewhere."""
    image = Image.new("RGBA", size, "black")
    image.paste((0, 0, 0, 0), box)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def opened(b64_json: str | None) -> Image.Image:
    assert b64_json is not None
    return Image.open(io.BytesIO(base64.b64decode(b64_json)))


async def test_images_are_base64_and_an_ordinary_job(
    client: AsyncOpenAI, pool: StandIn, queue: Queue
) -> None:
    made = await client.images.generate(
        model=MODEL,
        prompt="a cat",
        n=2,
        size="64x96",
        output_format="webp",
        output_compression=80,
        user="ada",
        extra_body={"negative_prompt": "a dog", "num_inference_steps": 3, "seed": 7},
    )
    assert made.data is not None and made.usage is not None
    assert [opened(image.b64_json).format for image in made.data] == ["WEBP", "WEBP"]
    assert (made.size, made.output_format, made.background) == ("64x96", "webp", "opaque")
    assert made.usage.output_tokens == 2 * 4 * 6
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    (job,) = pool.received
    fields = {name: job.request[name] for name in ("prompt", "negative_prompt", "width", "height")}
    assert fields == {"prompt": "a cat", "negative_prompt": "a dog", "width": 64, "height": 96}
    assert (job.request["seed"], job.steps, job.images) == (7, 2 * 3, 2)
    output = job.request["output"]
    assert (output["format"], output["quality"]) == ("webp", 80)
    assert job.metadata == {"user": "ada"}
    stored = await queue.get(job.id)
    assert stored is not None and made.created == int(stored.finished_at or 0)


async def test_a_url_needs_no_key_and_is_whole(client: AsyncOpenAI, pool: StandIn) -> None:
    made = await client.images.generate(prompt="a cat", response_format="url", n=2)
    assert made.data is not None
    async with httpx.AsyncClient(trust_env=False) as browser:
        for image in made.data:
            assert image.url is not None and image.b64_json is None
            answer = await browser.get(image.url)
            assert answer.status_code == 200 and answer.content == picture()


@pytest.mark.parametrize("size", ["auto", None])
async def test_auto_is_the_models_own_size(
    client: AsyncOpenAI, pool: StandIn, size: str | None
) -> None:
    sizes: Any = {"size": size} if size else {}
    made = await client.images.generate(prompt="a cat", **sizes)
    assert made.size == "96x64"


@pytest.mark.parametrize(
    ("quality", "preset"),
    [("high", "exact"), ("hd", "exact"), ("low", None), ("auto", None), ("standard", None)],
)
async def test_openai_quality_maps_to_available_presets(
    client: AsyncOpenAI, pool: StandIn, quality: Any, preset: str | None
) -> None:
    await client.images.generate(prompt="a cat", quality=quality)
    assert pool.received[0].request.get("quality") == preset


async def test_an_edit_redraws_where_the_mask_is_transparent(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    image = picture(size=(64, 96))
    made = await client.images.edit(
        model=MODEL,
        image=("a.png", image, "image/png"),
        mask=("m.png", clear((64, 96), (0, 0, 16, 96)), "image/png"),
        prompt="a cat",
        response_format="b64_json",
        extra_body={"strength": 0.5, "num_inference_steps": 4},
    )
    assert made.data is not None and opened(made.data[0].b64_json).size == (SIZE_PX, SIZE_PX)
    assert made.size == "64x96"
    (job,) = pool.received
    assert (job.request["strength"], job.request["num_inference_steps"]) == (0.5, 4)
    assert await pool.store.get(job.request["image"]) == image
    mask = Image.open(io.BytesIO(await pool.store.get(job.request["mask_image"])))
    assert (mask.mode, mask.getpixel((8, 8)), mask.getpixel((32, 8))) == ("L", 255, 0)


async def test_a_mask_by_both_names_is_refused(client: AsyncOpenAI, pool: StandIn) -> None:
    with pytest.raises(BadRequestError, match="mask_image: is also given as mask"):
        await client.images.edit(
            image=("a.png", picture(), "image/png"),
            mask=("m.png", clear((SIZE_PX, SIZE_PX), (0, 0, 16, 16)), "image/png"),
            prompt="a cat",
            extra_body={"mask_image": base64.b64encode(picture()).decode()},
        )


async def test_a_list_with_one_image_is_that_image(client: AsyncOpenAI, pool: StandIn) -> None:
    await client.images.edit(image=[("a.png", picture(), "image/png")], prompt="a cat")
    assert await pool.store.get(pool.received[0].request["image"]) == picture()


async def test_further_images_of_a_list_are_references(client: AsyncOpenAI, pool: StandIn) -> None:
    files = [picture(size=(side, side)) for side in (64, 32, 48)]
    sent = [(f"{number}.png", file, "image/png") for number, file in enumerate(files)]
    await client.images.edit(image=sent, prompt="a cat")
    request = pool.received[0].request
    keys = [request["image"], *request["reference_images"]]
    assert [await pool.store.get(key) for key in keys] == files
    with pytest.raises(BadRequestError) as error:
        await client.images.edit(image=[*sent, sent[0]], prompt="a cat")
    assert error.value.param == "image" and "has 4 images" in error.value.message
    with pytest.raises(BadRequestError) as error:
        await client.images.edit(image=[*sent[:2], ("c.png", b"none", "image/png")], prompt="a cat")
    assert error.value.param == "image"


async def test_an_edit_has_the_nearest_size_to_its_image(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    """The image is too large, and its sides are no multiples of 16."""
    made = await client.images.edit(
        image=("a.png", picture(size=(300, 150)), "image/png"), prompt="a cat"
    )
    assert made.size == "176x80"


async def test_edit_size_is_the_scaled_size_of_its_image(
    client: AsyncOpenAI, queue: Queue, store: Store
) -> None:
    scaled = {"sized_by_image": ("image-to-image",), "sized_area_px": 64 * 64}
    async with StandIn(queue, store, SPEC.model_copy(update=scaled)):
        made = await client.images.edit(
            image=("a.png", picture(size=(300, 150)), "image/png"), prompt="a cat"
        )
    assert made.size == "96x32"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # there
async def test_variation_uses_only_the_image(client: AsyncOpenAI, pool: StandIn) -> None:
    made = await client.images.create_variation(
        image=("a.png", picture(size=(64, 64)), "image/png"), n=2, response_format="b64_json"
    )
    assert made.data is not None and len(made.data) == 2
    (job,) = pool.received
    assert (job.request["prompt"], job.request["strength"]) == ("", 0.6)


@pytest.mark.parametrize(
    ("asked", "param", "said"),
    [
        ({"size": "100x100"}, "size", "the nearest is 96x96, the model's own 96x64"),
        ({"size": "4096x4096"}, "size", "the nearest is 128x128"),
        ({"size": "8x8"}, "size", "size: must be 32 to 256 pixels; the nearest"),
        ({"size": "0x64"}, "size", "at least 1"),
        ({"size": "big"}, "size", "WIDTHxHEIGHT"),
        ({"n": 9}, "n", "4 at most"),
        ({"n": "two"}, "n", "whole number"),
        ({"background": "transparent"}, "background", "transparent"),
        ({"quality": "best"}, "quality", "available: exact"),
        ({"output_format": "gif"}, "output_format", "'png', 'jpeg' or 'webp'"),
        ({"num_images": 2, "n": 3}, "num_images", "also given as n"),
        ({"steps": 3}, "steps", "num_inference_steps"),
        ({"scheduler": {"name": "ddim"}}, "scheduler", "does not support"),
        ({"metadata": 3, "user": "ada"}, "metadata", "object"),
        ({"output": 3, "output_format": "jpeg"}, "output", "object"),
        (
            {"output": {"format": "png"}, "output_format": "jpeg"},
            "output.format",
            "also given as output_format",
        ),
        ({"output": {"lossy": True}, "output_format": "jpeg"}, "output.lossy", "no such field"),
    ],
)
async def test_unsupported_request_is_named(
    client: AsyncOpenAI, pool: StandIn, asked: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(BadRequestError) as error:
        await client.post(
            "/images/generations", body={"prompt": "a cat", **asked}, cast_to=httpx.Response
        )
    assert (error.value.param, error.value.type) == (param, "invalid_request_error")
    assert said in error.value.message


async def test_output_format_merges_with_output_options(client: AsyncOpenAI, pool: StandIn) -> None:
    await client.images.generate(
        prompt="a cat", output_format="jpeg", extra_body={"output": {"metadata": False}}
    )
    output = pool.received[0].request["output"]
    assert (output["format"], output["metadata"]) == ("jpeg", False)


async def test_a_mask_without_transparency_is_refused(client: AsyncOpenAI, pool: StandIn) -> None:
    file = ("a.png", picture(), "image/png")
    with pytest.raises(BadRequestError) as error:
        await client.images.edit(image=file, mask=file, prompt="a cat")
    assert error.value.param == "mask" and "alpha" in error.value.message
    broken = ("m.png", b"\x89PNG\r\n", "image/png")
    with pytest.raises(BadRequestError) as error:
        await client.images.edit(image=file, mask=broken, prompt="a cat")
    assert error.value.param == "mask"


async def test_inpainting_model_requests_an_openai_mask(
    client: AsyncOpenAI, queue: Queue, store: Store
) -> None:
    async with StandIn(queue, store, INPAINTING.model_copy(update={"tasks": ("inpainting",)})):
        with pytest.raises(BadRequestError) as error:
            await client.images.edit(image=("a.png", picture(), "image/png"), prompt="a cat")
    assert error.value.param == "mask"
    assert "transparent" in error.value.message and "mask_image" not in error.value.message


async def test_unknown_model_is_not_found(client: AsyncOpenAI, pool: StandIn) -> None:
    with pytest.raises(NotFoundError) as error:
        await client.images.generate(model="dall-e-3", prompt="a cat")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    assert MODEL in error.value.message


async def test_malformed_body_is_a_bad_request(wire: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await wire.post("/v1/images/generations", content=b"[", headers=headers)
    assert answer.status_code == 400 and set(answer.json()) == {"error"}


async def test_failed_job_is_not_retried_by_clients(wire: httpx.AsyncClient, pool: StandIn) -> None:
    pool.failure = JobError(code="out_of_memory", message="too large")
    async with openai_client(str(wire.base_url), max_retries=2) as client:
        with pytest.raises(APIStatusError) as error:
            await client.images.generate(prompt="a cat")
    assert (error.value.status_code, error.value.code) == (500, "out_of_memory")
    assert len(pool.received) == 1


async def test_repeated_idempotency_key_returns_the_same_job(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    same = {"Idempotency-Key": "k"}
    first = await client.images.generate(prompt="a cat", extra_headers=same)
    second = await client.images.generate(prompt="a cat", extra_headers=same)
    assert first == second and len(pool.received) == 1
    with pytest.raises(APIStatusError) as error:
        await client.images.generate(prompt="a dog", extra_headers=same)
    assert error.value.status_code == 409


async def test_a_job_whose_client_left_is_canceled(
    client: AsyncOpenAI, pool: StandIn, queue: Queue
) -> None:
    pool.may_finish.clear()
    request = asyncio.create_task(client.images.generate(prompt="a cat"))
    await pool.has_claimed.wait()
    request.cancel()

    async def is_canceled() -> bool:
        job = await queue.get(pool.received[0].id)
        return job is not None and job.state is JobState.CANCELED

    await eventually(is_canceled)
