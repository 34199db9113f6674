"""Upscaling of finished images by a real worker, from HTTP to the store."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from models.parallel.axis_rules import Layout
from models.spec.upscalers import BUCKET, tile_starts
from service.app import create_app
from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.recipes.files import read_parameters, read_recipe
from service.settings.settings import Settings
from tests.workers.jobs import ended, pixels, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import at_work, has, has_step
from tests.workers.toy import Gate, ToyPipeline
from tests.workers.upscaler import TILE, upscalers
from workers.engine.upscaling import TilePrograms, Upscaling

TWICE = {"name": "twice", "scale": 2}
WIDTH, HEIGHT = 64, 8
"""Size of the toy's image for 32 x 16: one long strip."""


def larger(image: np.ndarray, scale: float = 2) -> np.ndarray:
    """Upscale an image with a separate upscaler."""
    upscaling = Upscaling(TilePrograms("toy", upscalers()["twice"]), image, scale)
    for work in upscaling.tile_tasks():
        work()
    return upscaling.image()


async def test_http_request_is_upscaled(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, tmp_path: Path
) -> None:
    """Each of two outputs is its plain image upscaled, and its recipe says so."""
    settings = Settings(state_dir=tmp_path)
    store = Store(settings.store_url)
    app = create_app(settings, queue, store)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        at_work(pipeline, layout, queue, store, {"width": 32, "height": 16}, upscalers=upscalers()),
    ):
        await until(lambda: has(queue, (1, True)))
        [model] = (await http.get("/v1/models")).json()["data"]
        assert model["upscalers"] == {"twice": {"scale": 2, "tile": 8, "digest": "ab" * 32}}
        assert "upscale" in model["fields"]
        body = {"prompt": "a cat", "seed": 5, "num_images": 2}
        wait = {"Prefer": "wait=60"}
        plain = (await http.post("/v1/generate", json=body, headers=wait)).json()
        upscaled_body = {**body, "upscale": {"name": "twice"}}
        job = (await http.post("/v1/generate", json=upscaled_body, headers=wait)).json()
        assert (job["state"], job["request"]["upscale"]) == ("succeeded", TWICE)
        costs = [await queue.get(entry["id"]) for entry in (plain, job)]
        plain_job, upscaled_job = [entry for entry in costs if entry is not None]
        assert (plain_job.tail_s, upscaled_job.tail_s > 0) == (0, True)
        assert (
            upscaled_job.cost > upscaled_job.tail_s
            and (upscaled_job.run_s or 0) > upscaled_job.tail_s
        )
        for output, before in zip(job["outputs"], plain["outputs"], strict=True):
            assert (output["width"], output["height"]) == (2 * WIDTH, 2 * HEIGHT)
            file = (await http.get(output["url"])).content
            small = np.asarray(Image.open(io.BytesIO((await http.get(before["url"])).content)))
            large = np.asarray(Image.open(io.BytesIO(file)))
            assert np.array_equal(large, larger(small))
            recipe = read_recipe(file)
            assert recipe is not None and recipe.upscaler == "ab" * 32
            again = {name: recipe.request[name] for name in ("prompt", "seed", "upscale")}
            repeated = (await http.post("/v1/generate", json=again, headers=wait)).json()
            assert repeated["outputs"][0]["pixels_sha256"] == output["pixels_sha256"]
            parameters = read_parameters(file)
            assert parameters is not None and "Postprocess upscaler: twice" in parameters
        refused = await http.post("/v1/generate", json={**body, "upscale": {"name": "x"}})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == "upscale.name"


@pytest.mark.parametrize(("scale", "width", "height"), [(1.5, 96, 12), (1, 64, 8)])
async def test_a_smaller_scale_is_resized_from_the_upscalers_own(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store,
    scale: float, width: int, height: int,
) -> None:  # fmt: skip
    job = toy_job(upscale={"name": "twice", "scale": scale})
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, upscalers=upscalers()):
        job = await ended(queue, job)
    assert [(output.width, output.height) for output in job.outputs] == [(width, height)]


async def test_batching_changes_no_byte(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """Upscaled and plain images share steps."""
    jobs = [toy_job(seed=seed % 2, **({"upscale": TWICE} if seed < 4 else {})) for seed in range(6)]
    for job in jobs:
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store, upscalers=upscalers()):
        done = [await ended(queue, job) for job in jobs]
    images = [(await pixels(store, job))[0] for job in done]
    for number, image in enumerate(images[:4]):
        assert np.array_equal(image, larger(images[4 + number % 2]))
    assert not np.array_equal(images[0], images[1])


async def test_tile_time_is_reported_and_charged(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    plain, job = toy_job(), toy_job(upscale=TWICE)
    async with at_work(pipeline, layout, queue, store, upscalers=upscalers()) as (worker, _):
        await until(lambda: has(queue, (1, True)))
        await queue.put(plain)
        plain = await ended(queue, plain)
        await queue.put(job)
        job = await ended(queue, job)
        tile_s = (await queue.costs("toy")).unit_s(BUCKET + "twice")
        took_s = worker.engine.upscalers.seconds(TWICE, (HEIGHT, WIDTH, 3))  # type: ignore[attr-defined]
    assert tile_s > 0 and took_s > 0
    assert job.usage.device_seconds >= took_s


async def test_canceled_between_tiles(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    gate = Gate()
    gate.open(2)  # those of the start
    job, other = toy_job(upscale=TWICE), toy_job(seed=1, upscale=TWICE)
    async with at_work(pipeline, layout, queue, store, upscalers=upscalers(gate)):
        await until(lambda: has(queue, (1, True)))
        await queue.put(job)
        await until(lambda: gate.count == 3)
        running = await queue.get(job.id)
        assert running is not None and running.detail is not None
        await queue.cancel(job.id)
        await until(lambda: is_in(queue, job.id, JobState.CANCELED))
        await queue.put(other)
        gate.open()
        await ended(queue, other)
    tiles = len(tile_starts(WIDTH, TILE))
    assert gate.count == 3 + tiles, "one tile of the canceled job, and all of the other's"


async def is_in(queue: Queue, job_id: str, state: JobState) -> bool:
    job = await queue.get(job_id)
    return job is not None and job.state == state


async def test_worker_that_drains_during_upscaling_has_stored_the_latents(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, put_aside_at_once: float
) -> None:
    """Another worker decodes and upscales the snapshot, and runs no step."""
    gate = Gate()
    gate.open(3)
    pipeline.gate.open()
    job = toy_job(phase="gated", num_inference_steps=20, seed=3, upscale=TWICE)
    settings = {"upscalers": upscalers(gate), "drain_s": put_aside_at_once}
    async with at_work(pipeline, layout, queue, store, **settings) as (worker, task):
        await until(lambda: has(queue, (1, True)))
        await queue.put(job)
        await until(lambda: gate.count == 4)
        await until(lambda: has_step(queue, job.id, 20))
        worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
        gate.open()
    job = await queue.get(job.id)
    assert (job.state, [snapshot.step for snapshot in job.snapshots]) == (JobState.QUEUED, [20])
    other = ToyPipeline()
    async with at_work(other, layout, queue, store, upscalers=upscalers()):
        job = await ended(queue, job)
        again = toy_job(num_inference_steps=20, seed=3)
        await queue.put(again)
        again = await ended(queue, again)
    assert other.gate.count == 0
    [image], [plain] = await pixels(store, job), await pixels(store, again)
    assert np.array_equal(image, larger(plain))
