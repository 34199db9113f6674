"""Auditions: images that stop at a step, and jobs that continue from their drafts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from models.parallel.axis_rules import Layout
from service.admission.drafts import Drafts, continuation_job, store_drafts
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import Job, JobState, Output, Snapshot
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.recipes.files import read_recipe
from service.recipes.recipe import DIGEST_CHARS
from service.settings.tenants import TenantSettings
from tests.workers.jobs import ended, pixels, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import at_work, has_step, swept
from tests.workers.toy import SPEC, ToyPipeline, reference
from workers.programs.batch_sizes import BatchSizes, exact

STOP, STEPS = 3, 8


def audition(**fields: Any) -> Job:
    """Return a job of four images that stop after three of eight steps, seeds 5 to 8."""
    request = {"num_images": 4, "num_inference_steps": STEPS, "seed": 5, **fields}
    job = toy_job(**request, stop_at_step=STOP)
    return job.model_copy(update={"steps": STOP * job.images})


async def continuation(store: Store, drafts: Drafts, **fields: Any) -> Job:
    """Return a job that continues from drafts, as the front end submits it."""
    before = {
        name: value
        for name, value in drafts.audition.request.items()
        if name not in ("stop_at_step", "num_images")
    }
    submitted = toy_job(**{**before, **fields, "num_images": len(drafts.images)})
    submitted = submitted.model_copy(update={"fingerprint": drafts.audition.fingerprint})
    job = continuation_job(submitted, drafts, SPEC)
    await store_drafts(cast(FrontEnd, SimpleNamespace(store=store)), job, drafts)
    return job


async def auditioned(queue: Queue, **fields: Any) -> Job:
    job = audition(**fields)
    await queue.put(job)
    job = await ended(queue, job)
    assert job.state is JobState.PAUSED, job.error
    return job


async def straight(queue: Queue, store: Store, job: Job, **fields: Any) -> list[np.ndarray]:
    """Generate the same images, each by its own request without a stop."""
    images = []
    for number in range(job.images):
        request = {**job.request, **fields, "num_images": 1, "seed": job.seed_of(number)}
        alone = toy_job(**request)
        await queue.put(alone)
        images += await pixels(store, await ended(queue, alone))
    return images


async def test_images_pause_at_their_step_with_previews(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    async with at_work(pipeline, layout, queue, store):
        job = await auditioned(queue)
        assert (job.step, job.steps, job.usage.steps) == (STOP * 4, STOP * 4, STOP * 4)
        assert [output.seed for output in job.outputs] == [5, 6, 7, 8]
        assert [draft.step for draft in job.snapshots] == [STOP] * 4
        for draft in job.snapshots:
            assert await store.exists(str(draft.key))
        standing = await queue.quota_usage(job.tenant, TenantSettings())
        files: list[Output | Snapshot] = [*job.outputs, *job.snapshots]
        stored = sum(item.bytes for item in files)
        assert standing.stored_bytes == stored > 0
        assert all(draft.bytes > 0 for draft in job.snapshots)


@pytest.mark.parametrize("phase", ["plain", "noisy", "told"])
async def test_continued_images_equal_an_uninterrupted_run(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, phase: str
) -> None:
    """Another worker continues, and runs only the missing steps."""
    async with at_work(pipeline, layout, queue, store):
        parent = await auditioned(queue, phase=phase)
    async with at_work(ToyPipeline(), layout, queue, store):
        job = await continuation(store, Drafts(parent, (3, 1)))
        await queue.put(job)
        job = await ended(queue, job)
        assert [output.seed for output in job.outputs] == [8, 6]
        assert np.array_equal(await pixels(store, job), await straight(queue, store, job))
        alone = toy_job(**{**job.request, "num_images": 1})
        await queue.put(alone)
        whole = await ended(queue, alone)
        assert whole.outputs[0].sha256 == job.outputs[0].sha256
        recipe = read_recipe(await store.get(whole.outputs[0].key))
        assert recipe and recipe.step_digests and len(recipe.step_digests) == STEPS * DIGEST_CHARS
        assert (job.step, job.steps) == (STEPS * 2, STEPS * 2)
        assert job.usage.steps == (STEPS - STOP) * 2
        assert (await queue.get(parent.id)) == parent, "its drafts are there for others"
        again = await continuation(store, Drafts(parent, (1,)))
        await queue.put(again)
        same = await pixels(store, await ended(queue, again))
        assert np.array_equal(same, await straight(queue, store, again))


async def test_a_continued_job_does_no_step_again(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    pipeline.gate.open()
    async with at_work(pipeline, layout, queue, store):
        parent = await auditioned(queue, phase="gated", num_images=1)
        assert pipeline.gate.count == STOP
        job = await continuation(store, Drafts(parent, (0,)))
        await queue.put(job)
        assert (await ended(queue, job)).state is JobState.SUCCEEDED
        assert pipeline.gate.count == STEPS


@pytest.mark.parametrize("batching", [None, exact(2)], ids=["gone", "other programs"])
async def test_image_without_a_usable_draft_restarts(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    store: Store,
    batching: BatchSizes | None,
) -> None:
    async with at_work(pipeline, layout, queue, store):
        parent = await auditioned(queue)
    if batching is None:
        await queue.delete(parent.id)
        await until(lambda: swept(queue, store))
        assert not any([await store.exists(str(draft.key)) for draft in parent.snapshots])
    job = await continuation(store, Drafts(parent, (2,)))
    async with at_work(ToyPipeline(), layout, queue, store, batching=batching):
        await queue.put(job)
        images = await pixels(store, await ended(queue, job))
        assert np.array_equal(images, await straight(queue, store, job))


async def test_audition_resumes_on_another_worker(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, put_aside_at_once: float
) -> None:
    """Images that have reached their step are not generated again, and the others resume.

    The final images are the same.
    """
    job = audition(phase="gated", num_images=2)
    await queue.put(job)
    drain_s = put_aside_at_once
    async with at_work(pipeline, layout, queue, store, slots=1, drain_s=drain_s) as (worker, task):
        pipeline.gate.open(STOP + 2)
        await until(lambda: has_step(queue, job.id, STOP + 1))
        worker.stop()
        await asyncio.wait_for(task, DEADLINE_S)
    assert (await queue.get(job.id)).state is JobState.QUEUED
    other = ToyPipeline()
    other.gate.open()
    async with at_work(other, layout, queue, store):
        parent = await ended(queue, job)
        assert parent.state is JobState.PAUSED
        assert other.gate.count < STOP * 2
        job = await continuation(store, Drafts(parent, (0, 1)))
        await queue.put(job)
        images = await pixels(store, await ended(queue, job))
        assert np.array_equal(images, await straight(queue, store, job))


@pytest.mark.parametrize("is_kept", [True, False], ids=["from its draft", "its draft drawn again"])
async def test_branch_shares_the_first_steps_of_its_draft(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, is_kept: bool
) -> None:
    pipeline.gate.open()
    async with at_work(pipeline, layout, queue, store):
        parent = await auditioned(queue, prompt="a cat", phase="gated", num_images=3)
        before = pipeline.gate.count
        job = await continuation(store, Drafts(parent, (2,)), prompt="a dog")
        assert job.drafted and job.drafted.fields == {"prompt": "a cat"}
        assert [warning.field for warning in job.warnings] == ["prompt"]
        if not is_kept:
            await store.delete([str(snapshot.key) for snapshot in job.snapshots])
        await queue.put(job)
        job = await ended(queue, job)
        steps = STEPS - STOP if is_kept else STEPS
        assert pipeline.gate.count - before == steps
        assert job.usage.steps == STEPS - STOP
        recipe = read_recipe(await store.get(job.outputs[0].key))
        assert recipe and recipe.drafted == {"prompt": "a cat"}
        alone = toy_job(**{**job.request, "prompt": "a cat", "seed": job.seed_of(0)})
        await queue.put(alone)
        whole = read_recipe(await store.get((await ended(queue, alone)).outputs[0].key))
        assert whole and whole.first_difference(recipe) == (STOP + 1, STEPS)
        [branch] = await pixels(store, job)
        for prompt in ("a cat", "a dog"):
            [other] = await straight(queue, store, job, prompt=prompt)
            assert not np.array_equal(branch, other)
    request = {**job.request, "seed": job.seed_of(0), "prompt": "a cat"}
    expected = reference(ToyPipeline(), request, later=(STOP, {"prompt": "a dog"}))
    assert np.abs(branch.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("is_kept", [True, False], ids=["from its draft", "its draft drawn again"])
async def test_a_draft_is_finished_with_more_steps(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, is_kept: bool
) -> None:
    """The longer schedule begins at the draft's noise level: 3 of 8 steps are 6 of 16."""
    pipeline.gate.open()
    async with at_work(pipeline, layout, queue, store):
        parent = await auditioned(queue, phase="gated", num_images=1)
        before, steps = pipeline.gate.count, 2 * STEPS
        job = await continuation(store, Drafts(parent, (0,)), num_inference_steps=steps)
        if not is_kept:
            await store.delete([str(snapshot.key) for snapshot in job.snapshots])
        await queue.put(job)
        job = await ended(queue, job)
        [image] = await pixels(store, job)
        assert pipeline.gate.count - before == steps - 2 * STOP + (0 if is_kept else STOP)
        assert job.usage.steps == steps - 2 * STOP
        recipe = read_recipe(await store.get(job.outputs[0].key))
        assert recipe and recipe.drafted == {"num_inference_steps": STEPS}
        assert recipe.step_digests is None
        unfit = await continuation(store, Drafts(parent, (0,)), num_inference_steps=12)
        await queue.put(unfit)
        unfit = await ended(queue, unfit)
        assert unfit.error and unfit.error.code == "invalid_request"
        assert "the noise level after step 3 of 8" in unfit.error.message
    request = {**job.request, "num_inference_steps": STEPS}
    later = STOP, {"num_inference_steps": steps}
    expected = reference(ToyPipeline(), request, later, position=2 * STOP)
    assert np.abs(image.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("is_kept", [True, False], ids=["from its draft", "its draft drawn again"])
async def test_branch_may_have_another_seed(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, is_kept: bool
) -> None:
    """Later steps have other noise, each image by its own seed. The file names the draft's seed."""
    async with at_work(pipeline, layout, queue, store):
        parent = await auditioned(queue, phase="noisy")
        job = await continuation(store, Drafts(parent, (2, 0), seed=90))
        assert job.seeds == [90, 91] and job.drafted and job.drafted.seeds == (7, 5)
        assert [warning.field for warning in job.warnings] == ["seed"]
        if not is_kept:
            await store.delete([str(snapshot.key) for snapshot in job.snapshots])
        await queue.put(job)
        job = await ended(queue, job)
        images = await pixels(store, job)
        assert [output.seed for output in job.outputs] == [90, 91]
    for number, (drafted, new_seed) in enumerate([(7, 90), (5, 91)]):
        recipe = read_recipe(await store.get(job.outputs[number].key))
        assert recipe and recipe.drafted == {"seed": drafted} and recipe.request["seed"] == new_seed
        first_request = {**job.request, "seed": drafted}
        expected = reference(ToyPipeline(), first_request, later=(STOP, {"seed": new_seed}))
        assert np.abs(images[number].astype(int) - expected).max() <= 1
    same = await continuation(store, Drafts(parent, (1, 2), seed=6))
    assert same.drafted is None and same.seeds == [6, 7], "their own"
    half = await continuation(store, Drafts(parent, (1, 3), seed=6))
    assert half.drafted and half.drafted.of(0, 6) == {} and half.drafted.of(1, 7) == {"seed": 8}
