"""Admission as the routes call it, without HTTP: a body and headers become a job."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from fastapi import FastAPI
from PIL import Image

from models.spec.request_images import image_values
from service.admission.admit import admit
from service.admission.parse import Caller, parse_body
from service.errors.problems import Conflict, Invalid, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import BASE_VERSION, DEFAULT_TENANT, ENLARGER_VERSION, Job
from service.validation.resolved_fields import ResolvedFields, resolve
from tests.service.standin import MODEL, StandIn
from tests.service.validation.test_hires import SMALL, TWO_STAGES
from tests.service.validation.test_progressive import GROWING as OF_GROWTH

T = TypeVar("T")
BODY = {"prompt": "a star", "seed": 3, "metadata": {"of": "us"}}


async def connected(work: Coroutine[Any, Any, T]) -> T:
    return await work


GROWING = OF_GROWTH.model_copy(update={"name": "growing"})


@pytest.fixture
def front(app: FastAPI, pool: StandIn) -> FrontEnd:
    front: FrontEnd = app.state.front
    return front


async def admitted(front: FrontEnd, body: dict[str, Any], **headers: str) -> Job:
    caller = Caller(DEFAULT_TENANT, "127.0.0.1", connected)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await admit(front, caller, parse_body(body), named)).job


async def test_a_body_becomes_a_job(front: FrontEnd) -> None:
    job = await admitted(front, BODY)
    assert (job.request["prompt"], job.request["seed"], job.metadata) == ("a star", 3, {"of": "us"})
    assert await front.queue.get(job.id) is not None


async def test_long_prompts_do_not_block_the_event_loop(
    front: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_main: list[bool] = []

    def recorded(*arguments: Any) -> ResolvedFields:
        is_main.append(threading.current_thread() is threading.main_thread())
        return resolve(*arguments)

    monkeypatch.setattr("service.admission.resolve.resolve", recorded)
    for prompt in ("a cat", "a cat " * 1000):
        await admitted(front, {"prompt": prompt})
    assert is_main == [True, False]


async def test_idempotency_key_returns_the_first_job(front: FrontEnd) -> None:
    first = await admitted(front, BODY, idempotency_key="one")
    assert (await admitted(front, BODY, idempotency_key="one")).id == first.id
    with pytest.raises(Conflict):
        await admitted(front, BODY | {"seed": 4}, idempotency_key="one")


async def test_an_older_pool_gets_no_job_that_it_would_misread(front: FrontEnd) -> None:
    await front.queue.register("newest", TWO_STAGES, ready=True)
    two_stages = BODY | SMALL | {"model": TWO_STAGES.name}
    assert (await admitted(front, two_stages | {"hires": {}})).version == ENLARGER_VERSION
    assert (await admitted(front, two_stages)).version == BASE_VERSION
    plain = BODY | SMALL | {"model": MODEL, "hires": {"scale": 1.5}}
    assert (await admitted(front, plain)).version == BASE_VERSION


async def test_smaller_first_steps_are_a_pass_of_their_own(front: FrontEnd) -> None:
    """The job's steps and passes include both sizes; its bucket is the smaller size's."""
    await front.queue.register("newest", GROWING, ready=True)
    body = BODY | {"model": GROWING.name, "width": 128, "height": 96, "num_images": 2}
    job = await admitted(front, body | {"quality": "grows", "num_inference_steps": 7})
    assert job.second_pass is not None and job.version == BASE_VERSION
    assert (job.steps, job.second_pass.steps) == (14, 8)
    sizes = [GROWING.bucket(job.request | size) for size in (SMALL | {"width": 64}, {})]
    assert job.passes() == ((sizes[0], 6), (sizes[1], 8))


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"prompt": "a", "steps": 3}, ["steps"]),
        ({"prompt": "a", "width": 9, "strength": 0.5}, ["width", "strength"]),
        ({"seed": -1}, ["prompt", "seed"]),
    ],
)
async def test_every_wrong_field_is_named(
    front: FrontEnd, body: dict[str, Any], fields: list[str]
) -> None:
    with pytest.raises(Invalid) as refused:
        await admitted(front, body)
    assert {error.field for error in refused.value.errors} == {*fields}


async def test_refused_request_is_not_queued(front: FrontEnd) -> None:
    with pytest.raises(Problem):
        await admitted(front, BODY | {"model": "no such model"})
    assert await front.queue.list(limit=10) == []


def picture(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8), shade).save(file, "PNG")
    return file.getvalue()


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


async def test_images_in_lists_are_kept_in_their_order(front: FrontEnd) -> None:
    files = [picture(shade) for shade in (10, 20, 30)]
    control = [{"name": "canny", "image": encoded(files[2]), "scale": 0.5}]
    listed = {"reference_images": [*map(encoded, files[:2])], "control": control}
    job = await admitted(front, BODY | listed)
    keys = image_values(job.request)
    assert list(keys) == ["reference_images.0", "reference_images.1", "control.0.image"]
    assert [await front.store.get(key) for key in keys.values()] == files
    assert job.request["control"][0] | {"image": ""} == {
        **{"name": "canny", "image": "", "scale": 0.5},
        **{"start": 0.0, "end": 1.0},
    }


async def test_idempotency_key_covers_images_in_lists(front: FrontEnd) -> None:
    body, other = (BODY | {"reference_images": [encoded(picture(shade))]} for shade in (1, 2))
    first = await admitted(front, body, idempotency_key="listed")
    assert (await admitted(front, body, idempotency_key="listed")).id == first.id
    with pytest.raises(Conflict):
        await admitted(front, other, idempotency_key="listed")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"reference_images": [encoded(picture(1))] * 3}, "reference_images"),
        ({"reference_images": [encoded(picture(1)), "no file"]}, "reference_images.1"),
        ({"control": [{"name": "canny", "image": "no file"}]}, "control.0.image"),
        ({"control": [{"name": "canny", "image": "", "start": 0.5, "end": 0.5}]}, "control.0"),
        ({"image_prompts": [{"image": encoded(picture(1))}]}, "image_prompts"),
    ],
)
async def test_a_wrong_image_of_a_list_is_named(
    front: FrontEnd, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await admitted(front, BODY | given)
    assert [error.field for error in refused.value.errors] == [field]


async def test_empty_list_counts_as_absent(front: FrontEnd) -> None:
    job = await admitted(front, BODY | {"control": [], "image_prompts": [], "loras": []})
    assert not {"control", "image_prompts", "loras"} & job.request.keys()
