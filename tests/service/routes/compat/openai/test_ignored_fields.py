"""Fields of OpenAI's image API without effect: accepted, with a warning that the client gets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError

from models.spec.quality_presets import Quality
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.responses.warning_header import NAME
from service.routes.compat.openai.image_admission import warnings_of
from service.routes.compat.openai.image_requests import ImageEditForm, ImageRequest
from tests.service.routes.compat.openai.conftest import INPAINTING
from tests.service.standin import SPEC, StandIn, picture

PRESETS = INPAINTING.model_copy(update={"qualities": {"fast": Quality()}})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"style": "vivid"}, ["style"]),
        ({"moderation": "low", "service_tier": "flex"}, ["moderation", "service_tier"]),
        ({"moderation": "auto", "service_tier": "auto", "user": "ada", "background": "auto"}, []),
        ({"quality": "low"}, []),
        ({"quality": "medium"}, ["quality"]),
        ({"quality": "hd"}, []),
        ({"quality": "standard"}, []),
        ({"partial_images": 2}, ["partial_images"]),
        ({"stream": True, "response_format": "url"}, ["response_format"]),
        ({"stream": True, "partial_images": 2, "response_format": "b64_json"}, []),
    ],
)
def test_each_field_without_effect_is_named(fields: dict[str, Any], named: list[str]) -> None:
    body = ImageRequest(prompt="a cat", **fields)
    assert [warning.field for warning in warnings_of(body, PRESETS)] == named


@pytest.mark.parametrize(("fidelity", "named"), [("high", ["input_fidelity"]), ("low", [])])
def test_fidelity_of_edits(fidelity: Any, named: list[str]) -> None:
    body = ImageEditForm(prompt="a cat", input_fidelity=fidelity)
    assert [warning.field for warning in warnings_of(body, PRESETS)] == named


def test_quality_without_presets_warns_about_the_default() -> None:
    (warning,) = warnings_of(ImageRequest(prompt="a", quality="low"), SPEC)
    assert warning.message == "the model has no preset 'fast'; its default 'exact' is used"


async def test_the_client_gets_the_warnings(client: AsyncOpenAI, pool: StandIn) -> None:
    raw = await client.images.with_raw_response.generate(
        prompt="a cat", style="vivid", user="ada", quality="hd"
    )
    assert raw.headers[NAME] == "style: has no effect; describe the style in the prompt"
    (warning,) = json.loads(raw.text)["warnings"]
    assert warning["field"] == "style"
    assert pool.received[0].metadata == {"user": "ada"}


async def test_streaming_client_gets_the_warnings(client: AsyncOpenAI, pool: StandIn) -> None:
    async with client.images.with_streaming_response.generate(
        prompt="a cat", style="vivid", stream=True
    ) as stream:
        assert "style" in stream.headers[NAME]
        assert "image_generation.completed" in await stream.text()


async def test_a_transparent_background_is_refused_by_name(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    with pytest.raises(BadRequestError, match=r"background: .* does not generate transparent"):
        await client.images.generate(prompt="a cat", background="transparent")
    with pytest.raises(BadRequestError, match=r"background: .* does not generate transparent"):
        await client.images.edit(
            image=("a.png", picture(), "image/png"), prompt="a", background="transparent"
        )
    assert not pool.received


async def test_numbered_files_and_empty_ones_of_a_form(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    files = [
        ("image[0]", ("a.png", picture(size=(64, 64)), "image/png")),
        ("image[1]", ("b.png", picture(size=(32, 32)), "image/png")),
        ("mask", ("", b"", "application/octet-stream")),
    ]
    answer = await wire.post("/v1/images/edits", data={"prompt": "a cat"}, files=files)
    assert answer.status_code == 200, answer.text
    (job,) = pool.received
    assert await pool.store.get(job.request["image"]) == picture(size=(64, 64))
    (reference,) = job.request["reference_images"]
    assert await pool.store.get(reference) == picture(size=(32, 32))
    assert "mask_image" not in job.request


async def test_an_empty_file_with_a_name_is_refused(wire: httpx.AsyncClient, pool: StandIn) -> None:
    files = {"image": ("a.png", picture(), "image/png"), "mask": ("mask.png", b"", "image/png")}
    answer = await wire.post("/v1/images/edits", data={"prompt": "a cat"}, files=files)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "mask"


async def test_a_byte_order_mark_before_json(
    wire: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    async with StandIn(queue, store) as pool:
        body = b'\xef\xbb\xbf{"prompt": "a cat", "seed": 18446744073709551615}'
        headers = {"Content-Type": "application/json"}
        answer = await wire.post("/v1/images/generations", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert pool.received[0].request["seed"] == 2**64 - 1
        assert answer.json()["data"][0]["seed"] == 2**64 - 1
