"""Shadow jobs of a version: generation, comparison metrics, and invisibility to clients."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image

from service.front_end import shadows, version_watch
from service.front_end.shadows import psnr
from service.jobs.model.job import PRIORITIES, JobError
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store
from service.metrics.versions import OUTCOMES
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service import standin
from tests.service.adapters import INK, TAKING
from tests.service.eventually import eventually
from tests.service.standin import SPEC, StandIn, clip, picture
from tests.service.versions import ALIAS, R1, R2, ended, generate, set_alias, version


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_watch, "EVERY_S", 0.05)


@asynccontextmanager
async def pools(queue: Queue, store: Store) -> AsyncIterator[tuple[StandIn, StandIn]]:
    """Run a stand-in worker of r1 and of r2; every request to r1 has a shadow on r2."""
    await set_alias(queue, {R1: 1}, shadow=R2, shadow_share=1)
    async with (
        StandIn(queue, store, version(R1)) as first,
        StandIn(queue, store, version(R2)) as second,
    ):
        yield first, second


def counts(app: FastAPI) -> dict[str, float]:
    counter = app.state.front.telemetry.versions.shadows
    totals = {outcome: counter.labels(R2, outcome)._value.get() for outcome in OUTCOMES}
    return {outcome: count for outcome, count in totals.items() if count}


async def counted(app: FastAPI, **expected: float) -> None:
    async def are_there() -> bool:
        return counts(app) == expected

    await eventually(are_there)


async def test_shadow_repeats_the_request_without_client_data(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue, store: Store, settings: Settings
) -> None:
    """The shadow has the same seed and fields, but another version, and no data of the client."""
    async with pools(queue, store) as (first, second):
        job = await generate(http, priority="high", deadline_s=600, metadata={"a": "b"})
        done = await ended(http, job["id"])
        await counted(app, equal=1)
        (original,), (shadow,) = first.received, second.received
    own_fields = {"model", "priority", "deadline_s"}
    assert {name: value for name, value in original.request.items() if name not in own_fields} == {
        name: value for name, value in shadow.request.items() if name != "model"
    }
    assert shadow.request["seed"] == done["request"]["seed"] and "seed" in shadow.request
    assert (shadow.request["model"], shadow.model) == (R2, R2)
    assert (shadow.tenant, shadow.tenant_class, shadow.priority) == (
        shadows.TENANT, shadows.TENANT_CLASS, PRIORITIES["low"],
    )  # fmt: skip
    assert (shadow.metadata, shadow.deadline_at, shadow.weight) == ({}, None, 0.01)
    assert original.request_id and (shadow.request_id, shadow.key_id) == (None, None)
    assert done["served_by"] == R1
    listed = (await http.get("/v1/jobs")).json()["data"]
    assert [view["id"] for view in listed] == [job["id"]]
    assert (await http.get(f"/v1/jobs/{shadow.id}")).status_code == 404

    async def has_left() -> bool:
        return await queue.get(shadow.id) is None and pngs(settings) == {job["id"]}

    await eventually(has_left)
    assert await queue.redis.zcard(keys.SHADOWS) == 0


def pngs(settings: Settings) -> set[str]:
    """Ids of jobs with images in the store."""
    return {path.parent.name for path in Path(settings.store_url).rglob("*.png")}


async def test_other_pixels_are_measured(
    http: httpx.AsyncClient,
    app: FastAPI,
    queue: Queue,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = iter([picture(), noisy(picture())])
    monkeypatch.setattr(standin, "picture", lambda *_: next(files))
    async with pools(queue, store) as (_, two):
        two.may_finish.clear()
        await ended(http, (await generate(http))["id"])
        two.may_finish.set()
        await counted(app, different=1)
    page = (await http.get("/metrics")).text
    assert f'atelier_shadow_psnr_db_bucket{{le="35.0",model="{R2}"}} 0.0' in page
    assert f'atelier_shadow_psnr_db_bucket{{le="45.0",model="{R2}"}} 1.0' in page


def noisy(file: bytes) -> bytes:
    """An image whose every other row is lighter or darker by 4: 39 dB."""
    pixels = np.asarray(Image.open(io.BytesIO(file))).astype(int)
    pixels[::2] += np.where(pixels[::2] > 127, -4, 4)
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_pixels_of_images_and_videos() -> None:
    image = picture()
    assert psnr(image, image, "image/png") == float("inf")
    assert psnr(image, noisy(image), "image/png") == pytest.approx(39.1, abs=0.1)
    assert psnr(image, picture(size=(16, 16)), "image/png") is None
    video = clip("mp4", 5)
    assert psnr(video, video, "video/mp4") == float("inf")
    assert psnr(video, clip("mp4", 9), "video/mp4") is None


async def test_a_shadow_that_fails_is_counted(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue, store: Store
) -> None:
    async with pools(queue, store) as (_, two):
        two.failure = JobError(code="non_finite", message="NaN")
        await ended(http, (await generate(http))["id"])
        await counted(app, failed=1)


async def test_a_deleted_job_takes_its_shadow_along(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue, store: Store
) -> None:
    async with pools(queue, store) as (_, two):
        two.may_finish.clear()
        job = await generate(http)
        await two.has_claimed.wait()
        assert (await http.delete(f"/v1/jobs/{job['id']}")).status_code == 204
        await counted(app, dropped=1)

        async def has_left() -> bool:
            return await queue.get(two.received[0].id) is None

        await eventually(has_left)
        two.may_finish.set()


async def test_a_shadow_of_more_than_an_hour_is_dropped(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue, store: Store
) -> None:
    async with pools(queue, store) as (_, two):
        two.may_finish.clear()
        await ended(http, (await generate(http))["id"])
        await two.has_claimed.wait()
        assert counts(app) == {}
        await queue.redis.zincrby(
            keys.SHADOWS, -shadows.MAX_AGE_S - 1, (await queue.redis.zrange(keys.SHADOWS, 0, 0))[0]
        )
        await counted(app, dropped=1)
        two.may_finish.set()


@pytest.mark.parametrize("output", [{"format": "png"}, {"format": "webp"}])
async def test_copies_of_another_jobs_images_are_not_compared(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue, output: dict[str, str]
) -> None:
    """They take no time of their version, which has other jobs of that speed only if it is old."""
    reuse = app.state.front.settings.queue.model_copy(update={"reuse": True})
    app.state.front.settings = app.state.front.settings.model_copy(update={"queue": reuse})
    for name in (R1, R2):
        await queue.register(name, version(name), ready=True)
    await set_alias(queue, {R1: 1, R2: 0}, shadow=R2, shadow_share=1, baseline=R2)
    first = await generate(http, seed=7)
    await generate(http, seed=7, output=output)
    assert await queue.redis.zcard(keys.SHADOWS) == 1
    assert await queue.redis.zrange(keys.alias_jobs(ALIAS), 0, -1) == [first["id"]]


async def test_requests_succeed_without_a_shadow(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue, store: Store
) -> None:
    """The shadow's model is not ready, accepts other fields, or has its maximum of queued jobs."""
    await set_alias(queue, {R1: 1}, shadow=R2, shadow_share=1)
    async with StandIn(queue, store, version(R1)):
        await generate(http)
        assert counts(app) == {"skipped": 1}
        await queue.register("two", version(R2, fields=SPEC.fields - {"strength"}), ready=True)
        await generate(http)
        assert counts(app) == {"skipped": 2}
        await queue.register("two", version(R2), ready=True)
        most = shadows.LIMITS.max_queued
        jobs = [await generate(http) for _ in range(most + 3)]
        assert counts(app) == {"skipped": 5}
        assert (await queue.depths())[R2].queued == most
        await asyncio.gather(*(ended(http, job["id"]) for job in jobs))


async def test_adapters_of_a_tenant_are_not_shown_to_a_shadow(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue
) -> None:
    """The shadow belongs to another tenant, so only the operator's adapters are available."""
    await set_alias(queue, {R1: 1}, shadow=R2, shadow_share=1)
    private = INK.model_copy(update={"name": "mine", "digest": "ee" * 32, "origin": "upload"})
    for name in (R1, R2):
        ink = {"ink": INK.model_copy(update={"model": name})}
        changed = {
            "loras": ink, "fields": TAKING.fields, "lora_pages": 8,
            "lora_layers": TAKING.lora_layers,
        }  # fmt: skip
        await queue.register(name, version(name, **changed), ready=True)
    await queue.record_lora(
        "default", private.model_copy(update={"model": ALIAS}), TenantSettings()
    )
    await generate(http, loras=[{"name": "ink"}])
    assert counts(app) == {}
    assert (await queue.depths())[R2].queued == 1
    await generate(http, loras=[{"name": "mine"}])
    assert counts(app) == {"skipped": 1}


async def test_a_share_has_shadows(http: httpx.AsyncClient, app: FastAPI, queue: Queue) -> None:
    for name in (R1, R2):
        await queue.register(name, version(name), ready=True)
    await set_alias(queue, {R1: 1}, shadow=R2, shadow_share=0.25)
    random.seed(7)
    for _ in range(40):
        await generate(http)
    assert 2 <= await queue.redis.zcard(keys.SHADOWS) <= 16
