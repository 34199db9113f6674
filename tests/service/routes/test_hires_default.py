"""A model whose default includes hires fix: requests that omit `hires`, and requests that switch it
off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from models.spec.model_spec import DerivedModel
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.standin import SPEC, VIDEO, StandIn

TWICE = SPEC.model_copy(
    update={
        "defaults": {**SPEC.defaults, "width": 64, "height": 48, "hires": {"scale": 1.5}},
        "tasks": (*SPEC.tasks, "inpainting"),
        "fields": SPEC.fields | {"mask_image"},
        "derived": (DerivedModel(name="fast", defaults={"num_inference_steps": 2}, loras=()),),
    }
)
CAT = {"prompt": "a cat", "model": TWICE.name, "seed": 7}


@pytest.fixture
async def twice(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, TWICE) as pool:
        yield pool


async def generate(
    http: httpx.AsyncClient, path: str = "/v1/generate", **body: Any
) -> dict[str, Any]:
    answer = await http.post(path, json=CAT | body, headers={"prefer": "wait=20"})
    assert answer.status_code in (200, 201), answer.text
    job: dict[str, Any] = answer.json()
    return job


async def test_null_is_one_pass(http: httpx.AsyncClient, twice: StandIn) -> None:
    left_out = await generate(http)
    assert left_out["request"]["hires"]["width"] == 96
    assert twice.received[0].second_pass is not None and twice.received[0].steps == 4 + 3
    off = await generate(http, hires=None)
    assert off["request"]["hires"] is None
    assert twice.received[1].second_pass is None and twice.received[1].steps == 4
    assert not off["warnings"]


async def test_resubmitted_job_with_default_hires_is_equal(
    http: httpx.AsyncClient, twice: StandIn
) -> None:
    off = await generate(http, hires=None)
    again = await generate(http, **off["request"])
    assert again["request"] == off["request"]
    assert [job.steps for job in twice.received] == [4, 4]


async def test_null_of_a_derived_model(http: httpx.AsyncClient, twice: StandIn) -> None:
    await generate(http, model="fast")
    await generate(http, model="fast", hires=None)
    assert [job.second_pass is None for job in twice.received] == [False, True]


@pytest.mark.parametrize("spec", [SPEC, VIDEO], ids=["no default", "no hires fix"])
async def test_null_has_no_effect_without_a_default(
    http: httpx.AsyncClient, queue: Queue, store: Store, spec: Any
) -> None:
    async with StandIn(queue, store, spec):
        job = await generate(http, model=spec.name, hires=None)
        assert "hires" not in job["request"]


@pytest.mark.parametrize("field", ["strength", "num_inference_steps", "upscale", "sigmas"])
async def test_null_of_other_fields_equals_omission(
    http: httpx.AsyncClient, twice: StandIn, field: str
) -> None:
    assert (await generate(http, **{field: None}))["request"] == (await generate(http))["request"]


async def test_idempotency_key_distinguishes_both_bodies(
    http: httpx.AsyncClient, twice: StandIn
) -> None:
    """Under one Idempotency-Key these two bodies differ."""
    key = {"idempotency-key": "a"}
    first = await http.post("/v1/generate", json=CAT, headers=key)
    assert first.status_code == 202
    assert (await http.post("/v1/generate", json=CAT, headers=key)).json()["id"] == (
        first.json()["id"]
    )
    other = await http.post("/v1/generate", json={**CAT, "hires": None}, headers=key)
    assert other.status_code == 409


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/images/generations", {"prompt": "a cat", "model": TWICE.name}),
        ("/v1/predictions", {"version": TWICE.name, "input": {"prompt": "a cat"}}),
    ],
)
async def test_endpoints_with_native_fields_accept_null(
    http: httpx.AsyncClient, twice: StandIn, path: str, body: dict[str, Any]
) -> None:
    for is_off in (False, True):
        request = {name: dict(value) if name == "input" else value for name, value in body.items()}
        request.get("input", request).update({"hires": None} if is_off else {})
        answer = await http.post(path, json=request, headers={"prefer": "wait=20"})
        assert answer.is_success, answer.text
    assert [job.second_pass is None for job in twice.received] == [False, True]


async def test_the_schema_does_not_call_null_the_default(http: httpx.AsyncClient) -> None:
    """Otherwise a generated client that fills in defaults would switch hires fix off."""
    schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    assert "default" not in schemas["GenerateRequest"]["properties"]["hires"]
