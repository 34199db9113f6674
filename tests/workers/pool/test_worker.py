"""Worker in this process, at the real queue, with a pipeline with injectable faults."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from prometheus_client import REGISTRY

from models.interface.pipeline import Fields, PreparedRow, generate
from models.parallel.axis_rules import Layout
from models.spec.model_spec import Batching
from service.jobs.model.job import FieldWarning, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store, input_key
from service.recipes.files import read_recipe
from service.settings.output import OutputSettings
from service.settings.redis import RedisSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from service.tracing.log_format import JsonFormatter
from tests.workers.jobs import ended, pixels, toy_job
from tests.workers.media.test_sound import loudest_hz
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import at_work, has, status
from tests.workers.sound_toy import RATE_HZ, SoundingToy
from tests.workers.toy import SPEC, ToyPipeline, reference
from workers.engine.place import place_of
from workers.media.outputs import DEFAULT_FPS
from workers.pool.process import run_pool
from workers.pool.trials import NO_NUMBERS
from workers.programs.batch_sizes import fast


async def test_ready_after_the_warm_up_and_unregistered_at_exit(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    async with at_work(pipeline, layout, queue, store):
        await until(lambda: has(queue, (1, False)))
        await until(lambda: has(queue, (1, True)))
    assert await status(queue) == (0, False)


@pytest.mark.parametrize("mode", ["exact", "fast"])
async def test_batching_mode_is_reported(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, mode: str
) -> None:
    """Fast batching also reports the levels between its batch sizes, once they are measured."""
    batching = fast(2) if mode == "fast" else None
    async with at_work(
        pipeline, layout, queue, store, warmup={"prompt": "a hat"}, batching=batching
    ):
        await until(lambda: has(queue, (1, True)))

        async def reported() -> Batching:
            return (await queue.models())[SPEC.name].spec.batching

        assert (await reported()).mode == mode

        async def measured() -> bool:
            return (await reported()).levels is not None

        if mode == "fast":
            await until(measured)
        else:
            assert not await measured()


async def test_a_signal_ends_the_warm_up(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    slow = {"phase": "slow-to-compile"}
    async with at_work(pipeline, layout, queue, store, warmup=slow) as (worker, task):
        await until(lambda: has(queue, (1, False)))
        worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0


async def test_a_model_of_no_finite_numbers_is_never_ready(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    async with at_work(pipeline, layout, queue, store, warmup={"nan_at": 0}) as (worker, task):
        await until(lambda: worker.liveness.not_ready_reason == NO_NUMBERS)
        assert await status(queue) == (1, False)
        assert worker.liveness.failure_reason is None, (
            "started again, it would load the same weights"
        )
        worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0


async def test_model_that_does_not_compile_ends_the_worker(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    with pytest.raises(AssertionError):
        async with at_work(pipeline, layout, queue, store, warmup={"phase": "flawed"}) as (_, task):
            await asyncio.wait_for(task, DEADLINE_S)
    assert await status(queue) == (0, False)


async def test_jobs_become_files(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """More jobs than slots, one with three images.

    Each image equals the reference with its own seed.
    """
    jobs = [toy_job(seed=10 * i, num_inference_steps=3 + i) for i in range(6)]
    jobs.append(toy_job(seed=2**64 - 4, num_images=3))
    for job in jobs:
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        for job in [await ended(queue, job) for job in jobs]:
            images = await pixels(store, job)
            assert len(images) == job.images
            for index, picture in enumerate(images):
                seed = job.request["seed"] + index
                expected = reference(pipeline, {**job.request, "seed": seed}).astype(int)
                assert np.abs(picture - expected).max() <= 1  # as in test_engine
                assert (job.outputs[index].seed, job.outputs[index].index) == (seed, index)
                assert job.outputs[index].made_by == place_of(pipeline.spec, layout).made_by
            assert job.step == job.steps == job.usage.steps
            assert job.usage.device_seconds > 0
            assert job.usage.queue_seconds == pytest.approx(job.started_at - job.created_at)


async def test_pipeline_warnings_are_added_to_front_end_warnings(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    existing = FieldWarning(field="eta", message="has no effect")
    long = toy_job(prompt="a red circle on a blue background", num_images=2)
    job = long.model_copy(update={"warnings": [existing]})
    short = toy_job(prompt="a cat")
    for submitted in (job, short):
        await queue.put(submitted)
    async with at_work(pipeline, layout, queue, store):
        first, *added = (await ended(queue, job)).warnings
        assert first == existing
        ((field, message),) = [(other.field, other.message) for other in added]
        assert (field, message.startswith("not read: '")) == ("prompt", True)
        assert (await ended(queue, short)).warnings == []


async def test_predictions_are_compared_with_actual_times(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    def metric(name: str) -> float:
        labels = {"model": SPEC.name}
        return REGISTRY.get_sample_value(f"atelier_job_cost_ratio_{name}", labels) or 0

    count, total = metric("count"), metric("sum")
    job, other = toy_job().model_copy(update={"run_s": 1.0, "cost": 1e-3}), toy_job()
    for each in (job, other):
        await queue.put(each)
    async with at_work(pipeline, layout, queue, store):
        job, _ = [await ended(queue, each) for each in (job, other)]
        await until(lambda: metric("count") > count)
    assert metric("count") - count == 1, "of the other one nothing was predicted"
    rounded = 1e-6 / job.cost  # the account is in millionths
    expected = pytest.approx(job.usage.device_seconds / job.cost, abs=rounded)
    assert metric("sum") - total == expected


async def test_videos_are_stored_as_one_file_each(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    formats = {"mp4": "video/mp4", "webm": "video/webm", "gif": "image/gif"}
    jobs = [toy_job(num_frames=5, output={"format": format}) for format in formats]
    jobs.append(toy_job(num_frames=5, fps=None, num_images=2, output={"format": "mp4"}))
    for job in jobs:
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        *single, double = [await ended(queue, job) for job in jobs]
    for job, (format, content_type) in zip(single, formats.items(), strict=True):
        [output] = job.outputs
        assert output.content_type == content_type
        assert output.key.endswith(f".{format}")
        assert (output.num_frames, output.fps, output.duration_s) == (5, 8, 0.625)
        assert (output.height, output.width) == (8, 64)
        with av.open(io.BytesIO(await store.get(output.key))) as file:
            assert len(list(file.decode(video=0))) == 5
    assert [output.sound_hz for job in single for output in job.outputs] == [None] * 3
    assert [output.index for output in double.outputs] == [0, 1]
    assert [output.fps for output in double.outputs] == [DEFAULT_FPS] * 2


async def test_videos_have_sound(layout: Layout, queue: Queue, store: Store) -> None:
    pipeline = SoundingToy()
    formats = {"mp4": RATE_HZ, "webm": RATE_HZ, "gif": None}
    jobs = [toy_job(num_frames=5, num_images=2, output={"format": format}) for format in formats]
    for job in jobs:
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store, warmup={"num_frames": 5}):
        done = [await ended(queue, job) for job in jobs]
    for job, rate_hz in zip(done, formats.values(), strict=True):
        for output in job.outputs:
            assert (output.sound_hz, output.duration_s) == (rate_hz, 0.625)
            with av.open(io.BytesIO(await store.get(output.key))) as file:
                assert len(file.streams.audio) == (rate_hz is not None)
                if rate_hz is None:
                    continue
                frames = list(file.decode(audio=0))
            decoded = np.concatenate([frame.to_ndarray() for frame in frames], axis=1)
            sound = generate(pipeline, {**job.request, "seed": output.seed}, {}).sound
            for channel, expected in zip(decoded, sound, strict=True):
                rate = frames[0].sample_rate
                hz = loudest_hz(expected, RATE_HZ)
                assert loudest_hz(
                    channel[: len(expected) * rate // RATE_HZ], rate
                ) == pytest.approx(hz, abs=2)


class Quoting(ToyPipeline):
    """Toy pipeline that quotes prompts in its errors and logs, as third-party code may."""

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        if fields.get("prompt"):
            logging.getLogger("elsewhere").warning("odd: %s", fields["prompt"])
            raise ValueError(f"cannot read {fields['prompt']!r}")
        return super().prepare(fields, images)


async def test_the_log_has_the_whole_error_and_not_the_prompt(
    layout: Layout, queue: Queue, store: Store
) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    job = toy_job(prompt="a fox's den")
    await queue.put(job)
    try:
        async with at_work(Quoting(), layout, queue, store):
            job = await ended(queue, job)
    finally:
        logging.getLogger().removeHandler(handler)
    assert job.error.code == "internal" and "the pool's log has the whole" in job.error.message
    assert "fox" not in written.getvalue()
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    (failed,) = (line for line in lines if "exception" in line)
    assert "in prepare" in failed["exception"] and "ValueError: cannot read" in failed["exception"]
    (odd,) = (line for line in lines if line["logger"] == "elsewhere")
    assert odd["job"] == failed["job"] == job.id, "in a thread, too"


async def test_frames_become_files_that_are_counted_on(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(num_frames=3, num_images=2, seed=5)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        job = await ended(queue, job)
    assert [output.index for output in job.outputs] == list(range(6))
    assert [output.seed for output in job.outputs] == [5, 5, 5, 6, 6, 6]
    assert {(output.content_type, output.num_frames) for output in job.outputs} == {
        ("image/png", None)
    }
    clips = [reference(pipeline, {**job.request, "seed": seed}) for seed in (5, 6)]
    images = await pixels(store, job)
    assert (
        np.abs(np.stack(images) - np.concatenate(clips).astype(int)).max() <= 1
    )  # as in test_engine


async def test_input_images_reach_the_pipeline(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job()
    job.request["image"] = input_key(job.id, "image")
    await store.put(job.request["image"], b"the image's bytes", "image/png")
    edges = input_key(job.id, "control.0.image")
    job.request["control"] = [{"name": "canny", "image": edges}]
    await store.put(edges, b"its edges", "image/png")
    await queue.put(job)
    missing = toy_job()
    missing.request["image"] = input_key(missing.id, "image")
    await queue.put(missing)
    async with at_work(pipeline, layout, queue, store):
        assert (await ended(queue, job)).state == JobState.SUCCEEDED
        assert pipeline.images == {
            "image": b"the image's bytes",
            "control.0.image": b"its edges",
        }
        missing = await ended(queue, missing)
    assert (missing.state, missing.error.code) == (JobState.FAILED, "store")


async def test_files_hold_the_recipe_of_each_image(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    fields = {"num_images": 2, "seed": 5, "prompt": "a fox", "webhook": {"url": "https://a.b/c"}}
    marked, unmarked = (
        toy_job(**fields),
        toy_job(**fields, output={"format": "png", "metadata": False}),
    )
    marked.request["image"] = input_key(marked.id, "image")
    await store.put(marked.request["image"], b"an image", "image/png")
    alone = toy_job(prompt="a fox", seed=6)
    for job in (marked, unmarked, alone):
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        marked, unmarked, alone = [await ended(queue, job) for job in (marked, unmarked, alone)]
    digests = [[item.pixels_sha256 for item in job.outputs] for job in (marked, unmarked, alone)]
    assert digests[0] == digests[1] and digests[0][1:] == digests[2] and digests[0][0]
    recipes = [read_recipe(await store.get(output.key)) for output in marked.outputs]
    assert [item.request["seed"] for item in recipes] == [5, 6]
    assert recipes[0].images == {"image": hashlib.sha256(b"an image").hexdigest()}
    assert not {"image", "webhook", "num_images"} & recipes[0].request.keys()
    assert read_recipe(await store.get(unmarked.outputs[0].key)) is None
    [file] = [await store.get(output.key) for output in alone.outputs]
    assert read_recipe(file).model_copy(update={"images": recipes[1].images}) == recipes[1]


async def test_failure_ends_only_its_job(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    expected = {
        "non_finite": toy_job(nan_at=1),
        "invalid_request": toy_job(width=33),
        "out_of_memory": toy_job(phase="hopeless"),
    }
    partly = toy_job(num_images=2, phase="hopeless")
    good = toy_job(seed=1)
    for job in (*expected.values(), partly, good):
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        for code, job in expected.items():
            job = await ended(queue, job)
            assert (job.state, job.error.code, job.attempts) == (JobState.FAILED, code, 1)
        assert (await ended(queue, partly)).state == JobState.FAILED
        assert (await ended(queue, good)).state == JobState.SUCCEEDED


async def test_cancel_while_running_and_while_waiting_for_a_slot(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    many = toy_job(phase="gated", num_images=6, num_inference_steps=50)
    await queue.put(many)
    async with at_work(pipeline, layout, queue, store) as (worker, _):
        await asyncio.to_thread(pipeline.gate.wait)
        await until(lambda: worker.engine.step_loop.load == 6)
        await queue.cancel(many.id)
        await until(lambda: worker.jobs == 0)
        before = pipeline.gate.count
        pipeline.gate.open()
        other = toy_job()
        await queue.put(other)
        assert (await ended(queue, other)).state == JobState.SUCCEEDED
        assert pipeline.gate.count - before <= 1, "at most the step that was sent already"
        assert (await queue.get(many.id)).state == JobState.CANCELED


async def test_progress_and_previews_are_events(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(phase="gated", num_inference_steps=8, num_images=2)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, preview_every_s=1e-6):
        events = []
        async with asyncio.timeout(DEADLINE_S):
            async for event in queue.events(job.id):
                events.append(event)
                pipeline.gate.open(1)
    names = [event.name for event in events]
    assert names[0] == "queued"
    assert {"running", "progress", "preview"} <= set(names)
    assert names[-1] == "succeeded"
    steps = [event.data["step"] for event in events if event.name == "progress"]
    assert steps == sorted(steps)
    assert all(event.data["steps"] == 16 for event in events if event.name == "progress")
    previews = [event.data["preview"] for event in events if event.name == "preview"]
    assert all(preview.startswith("data:image/webp;base64,") for preview in previews)


async def test_preview_has_the_frame_rate_of_the_video(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(phase="gated", num_inference_steps=12, num_frames=5)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, preview_every_s=1e-6):
        async with asyncio.timeout(DEADLINE_S):
            async for event in queue.events(job.id):
                pipeline.gate.open(1)
                if event.name == "preview":
                    break
    encoded = event.data["preview"].removeprefix("data:image/webp;base64,")
    image: Any = Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert image.n_frames == 5
    image.seek(1)
    image.load()
    assert image.info["duration"] == 1000 / SPEC.defaults["fps"]


def test_missing_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"pools\.x"):
        run_pool(Settings(), "x")
    with pytest.raises(ConfigError, match=r"models\.y"):
        run_pool(Settings(pools={"x": {"model": "y"}}), "x")
    settings = Settings(pools={"x": {"model": "y"}}, models={"y": {"source": "z"}})
    with pytest.raises(ConfigError, match=r"redis\.url"):
        run_pool(settings, "x")
    signing = {"c2pa_key": Path("absent.pem"), "c2pa_certificates": Path("absent.pem")}
    settings = settings.model_copy(
        update={"redis": RedisSettings(url="redis://nowhere"), "output": OutputSettings(**signing)}
    )
    with pytest.raises(ConfigError, match=r"output\.c2pa_certificates: can't read 'absent.pem'"):
        run_pool(settings, "x")
