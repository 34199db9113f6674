"""Models whose image-to-image requests have the image's own size."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.standin import SPEC, StandIn, picture

SIZED = SPEC.model_copy(update={"name": "sdxl-demo", "sized_by_image": ("image-to-image",)})


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, SIZED) as pool:
        yield pool


async def generate(http: httpx.AsyncClient, size: tuple[int, int], **body: Any) -> httpx.Response:
    image = base64.b64encode(picture("PNG", size)).decode()
    fields = {"prompt": "a cat", "model": SIZED.name, "image": image}
    return await http.post("/v1/generate", json=fields | body)


def size_of(answer: httpx.Response) -> tuple[int, int]:
    request = answer.json()["request"]
    return request["width"], request["height"]


async def test_size_defaults_to_the_image_size(http: httpx.AsyncClient, pool: StandIn) -> None:
    assert size_of(await generate(http, (64, 48))) == (64, 48)


async def test_down_to_whole_multiples(http: httpx.AsyncClient, pool: StandIn) -> None:
    assert size_of(await generate(http, (79, 50))) == (64, 48)


@pytest.mark.parametrize("given", [{"width": 32}, {"height": 32}, {"width": 32, "height": 48}])
async def test_requested_size_takes_precedence(
    http: httpx.AsyncClient, pool: StandIn, given: dict[str, int]
) -> None:
    """An omitted side is the image's."""
    expected = given.get("width", 64), given.get("height", 48)
    assert size_of(await generate(http, (64, 48), **given)) == expected


async def test_unsupported_image_size_is_rejected(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await generate(http, (20, 300))
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["field"] == "image"
    assert "16 x 288" in error["message"] and "send width and height" in error["message"]


async def test_default_size_applies_without_an_image(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    answer = await http.post("/v1/generate", json={"prompt": "a cat", "model": SIZED.name})
    assert size_of(answer) == (SIZED.defaults["width"], SIZED.defaults["height"])


async def test_size_of_a_large_image_is_scaled_down(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    """The size is scaled to that many pixels, and rounded down to multiples."""
    small = SIZED.model_copy(update={"name": "klein-demo", "sized_within_px": 64 * 48})
    async with StandIn(queue, store, small):
        answer = await generate(http, (130, 98), model=small.name)
        assert size_of(answer) == (48, 48)
        assert size_of(await generate(http, (64, 48), model=small.name)) == (64, 48)


@pytest.mark.parametrize(("size", "expected"), [((300, 300), (64, 64)), ((40, 10), (128, 32))])
async def test_a_model_of_an_area_scales_the_size(
    http: httpx.AsyncClient,
    queue: Queue,
    store: Store,
    size: tuple[int, int],
    expected: tuple[int, int],
) -> None:
    async with StandIn(queue, store, SIZED.model_copy(update={"sized_area_px": 64 * 64})):
        assert size_of(await generate(http, size)) == expected


@pytest.mark.parametrize(
    ("is_last", "further", "expected"),
    [(True, [(40, 80), (60, 30)], (96, 32)), (True, [], (64, 64)), (False, [(40, 80)], (64, 64))],
)
async def test_size_follows_the_last_of_several_images(
    http: httpx.AsyncClient,
    queue: Queue,
    store: Store,
    is_last: bool,
    further: list[tuple[int, int]],
    expected: tuple[int, int],
) -> None:
    spec = SIZED.model_copy(update={"sized_area_px": 64 * 64, "sized_by_last": is_last})
    files = [base64.b64encode(picture("PNG", size)).decode() for size in further]
    async with StandIn(queue, store, spec):
        assert size_of(await generate(http, (300, 300), reference_images=files)) == expected


async def test_strength_needs_a_mask_where_images_are_edited(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    async with StandIn(queue, store, SIZED.model_copy(update={"strength_needs": "mask_image"})):
        answer = await generate(http, (64, 64), strength=0.5)
        [error] = answer.json()["errors"]
        assert error == {"field": "strength", "message": "has no effect without mask_image"}
        assert "strength" not in (await generate(http, (64, 64))).json()["request"]
