"""Outputs that the safety hook allows, rejects, or returns no verdict for."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from PIL import Image
from prometheus_client import CollectorRegistry

from models.parallel.axis_rules import Layout
from service.jobs.model.job import JobState
from service.jobs.model.metrics import SafetyMetrics
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store, output_key
from service.safety.checker import SafetyChecker
from service.settings.safety import SafetySettings
from tests.safety_hook import HookProcess, hook_process
from tests.workers.jobs import ended, pixels, reached, toy_job
from tests.workers.polling import DEADLINE_S
from tests.workers.running_worker import at_work
from tests.workers.toy import ToyPipeline
from workers.pool.job_context import no_check
from workers.pool.output_files import OutputChecks


@pytest.fixture(scope="module")
def hook() -> Iterator[HookProcess]:
    with hook_process() as process:
        yield process


@asynccontextmanager
async def checked(hook: HookProcess, **settings: Any) -> AsyncIterator[OutputChecks]:
    safety = SafetySettings(url=hook.url, **{"timeout_s": DEADLINE_S, **settings})
    checker = SafetyChecker(safety, SafetyMetrics(CollectorRegistry(), "after"))
    yield OutputChecks(checker, safety.max_frames)
    await checker.close()


async def test_hook_gets_the_stored_pixels(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, hook: HookProcess
) -> None:
    job = toy_job(prompt="a hat", num_images=2)
    await queue.put(job)
    async with (
        checked(hook) as check,
        at_work(pipeline, layout, queue, store, check=check),
    ):
        images = await pixels(store, await ended(queue, job))
    calls = [call for call in hook.questions() if call["job"] == job.id]
    assert {call["when"] for call in calls} == {"after"} and len(calls) == 2
    for call in calls:
        (sent,) = call["images"]
        file = Image.open(io.BytesIO(base64.b64decode(sent["data"])))
        assert np.array_equal(np.asarray(file), images[call["index"]])


async def test_refused_job_stores_nothing_and_others_finish(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, hook: HookProcess
) -> None:
    refused, neighbour = toy_job(prompt="refuse after"), toy_job(prompt="a hat", seed=2)
    for job in (refused, neighbour):
        await queue.put(job)
    async with (
        checked(hook) as check,
        at_work(pipeline, layout, queue, store, check=check),
    ):
        refused = await ended(queue, refused)
        neighbour = await ended(queue, neighbour)
    assert refused.state is JobState.FAILED and refused.outputs == []
    assert refused.error and refused.error.code == "refused_by_safety"
    assert refused.error.message.endswith("it shows a secret")
    assert neighbour.state is JobState.SUCCEEDED
    keys = [output_key(job.id, 1, 0, "image/png") for job in (refused, neighbour)]
    assert [await store.exists(key) for key in keys] == [False, True]


async def test_no_preview_is_shown_before_the_check(
    layout: Layout, queue: Queue, store: Store, hook: HookProcess
) -> None:
    """The same worker without the check shows previews, so this test can fail."""
    had_preview = []
    async with checked(hook) as check:
        for active_check in (check, no_check):
            pipeline = ToyPipeline()
            job = toy_job(prompt="a hat", phase="gated", num_inference_steps=8)
            await queue.put(job)
            async with at_work(
                pipeline, layout, queue, store, check=active_check, preview_every_s=1e-6
            ), asyncio.timeout(DEADLINE_S):  # fmt: skip
                names = []
                async for event in queue.events(job.id):
                    names.append(event.name)
                    pipeline.gate.open(1)
            assert names[-1] == "succeeded"
            had_preview.append("preview" in names)
    assert had_preview == [False, True]


async def test_slow_safety_hook_does_not_delay_steps(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, hook: HookProcess
) -> None:
    slow, other = toy_job(prompt="slow after"), toy_job(prompt="a hat", seed=2)
    await queue.put(slow)
    async with (
        checked(hook) as check,
        at_work(pipeline, layout, queue, store, check=check, slots=1),
    ):
        await reached(queue, slow, JobState.RUNNING)
        await queue.put(other)
        assert (await ended(queue, other)).state is JobState.SUCCEEDED
        current = await queue.get(slow.id)
        assert current and current.state is JobState.RUNNING


async def test_job_without_verdict_is_retried_then_fails(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, hook: HookProcess
) -> None:
    job = toy_job(prompt="error after")
    await queue.put(job)
    async with (
        checked(hook, timeout_s=0.1) as check,
        at_work(pipeline, layout, queue, store, check=check),
    ):
        job = await ended(queue, job)
    assert job.error and job.error.code == "safety_unavailable"
    assert job.attempts == 3 and job.outputs == []


async def test_without_a_verdict_the_policy_may_allow(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, hook: HookProcess
) -> None:
    job = toy_job(prompt="garbage after")
    await queue.put(job)
    async with (
        checked(hook, timeout_s=0.1, when_absent="allow") as check,
        at_work(pipeline, layout, queue, store, check=check),
    ):
        assert (await ended(queue, job)).state is JobState.SUCCEEDED


async def test_hook_gets_selected_frames_of_a_video(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, hook: HookProcess
) -> None:
    job = toy_job(prompt="a hat", num_frames=9, output={"format": "mp4"})
    await queue.put(job)
    async with (
        checked(hook, max_frames=3) as check,
        at_work(pipeline, layout, queue, store, check=check),
    ):
        await ended(queue, job)
    (call,) = [entry for entry in hook.questions() if entry["job"] == job.id]
    assert [entry["frame"] for entry in call["images"]] == [0, 4, 8]
