"""Engine compared with a plain NumPy reference, on a pipeline with injectable faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from models.interface.pipeline import Fields, PreparedRow, PyTree, generate
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from tests.workers.observing import Observing
from tests.workers.polling import DEADLINE_S, until
from tests.workers.sound_toy import SoundingToy
from tests.workers.toy import ToyPipeline, reference
from workers import metrics
from workers.engine.engine import Engine
from workers.engine.errors import EngineFailed, GenerationFailed
from workers.engine.generation import EngineOutput
from workers.engine.row import Row
from workers.engine.snapshot import RowSnapshot
from workers.programs.batch_sizes import fast

PIXEL_TOLERANCE = 1
"""Levels of 255: NumPy and XLA round a colour between two values differently."""


@pytest.fixture
async def engine(pipeline: ToyPipeline, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(pipeline, layout, 4, fast(4))
    yield engine
    pipeline.gate.open()
    pipeline.compile_gate.set()
    engine.close()


async def make(engine: Engine, **fields: Any) -> EngineOutput:
    async with asyncio.timeout(DEADLINE_S):
        return await engine.generate(fields, {})


async def at_gate(pipeline: ToyPipeline) -> None:
    await asyncio.to_thread(pipeline.gate.wait)


def sizes(engine: Engine, phase: str, **fields: Any) -> list[int]:
    """Return the batch sizes that the engine would use now."""
    prepared = engine.pipeline.prepare({"phase": phase, **fields}, {})
    return [
        batch_layout.size
        for batch_layout in engine.programs.of(prepared)
        .step_kinds[StepProgram(phase)]
        .batch_layouts
    ]


def assert_is_reference(picture: EngineOutput, pipeline: ToyPipeline, **fields: Any) -> None:
    expected = reference(pipeline, fields).astype(int)
    assert picture.pixels.shape == expected.shape
    assert np.abs(picture.pixels - expected).max() <= PIXEL_TOLERANCE
    assert np.std(expected) > 10, "an image without contrast proves nothing"


async def test_single_image_matches_the_reference(engine: Engine, pipeline: ToyPipeline) -> None:
    fields = {"prompt": "a hat", "seed": 7, "num_inference_steps": 5}
    picture = await make(engine, **fields)
    assert_is_reference(picture, pipeline, **fields)
    assert (picture.seed, picture.steps) == (7, 5)
    assert picture.device_seconds > 0


async def test_mixed_requests_share_the_slots(engine: Engine, pipeline: ToyPipeline) -> None:
    """More images than slots, with different steps, guidance, sizes and phases."""
    requests: list[dict[str, Any]] = [
        {"seed": seed, "num_inference_steps": steps, "guidance_scale": guidance, **other}
        for seed, (steps, guidance, other) in enumerate(
            [
                (3, 1.0, {}),
                (9, 4.0, {}),
                (5, 2.0, {"phase": "double"}),
                (6, 2.0, {"phase": "plain", "second_phase": "double"}),
                (4, 3.0, {"width": 64}),
                (1, 3.0, {"width": 64, "phase": "double"}),
                (7, 1.5, {}),
                (6, 3.0, {"phase": "plain", "second_phase": "noisy"}),
            ]
        )
    ]
    pictures = await asyncio.gather(*(make(engine, **request) for request in requests))
    for picture, request in zip(pictures, requests, strict=True):
        assert_is_reference(picture, pipeline, **request)


class TransparentToy(ToyPipeline):
    """Toy pipeline whose images have a fifth of alpha's levels everywhere."""

    spec = ToyPipeline.spec.model_copy(update={"has_alpha": True})

    def decode(self, weights: PyTree, row: PyTree) -> Any:
        colours = super().decode(weights, row)
        return jnp.concatenate([colours, jnp.full_like(colours[..., :1], 51)], axis=-1)


@pytest.mark.parametrize("pipeline", [TransparentToy()])
async def test_alpha_is_kept_if_requested(pipeline: ToyPipeline, engine: Engine) -> None:
    transparent, opaque = [
        (await make(engine, seed=3, output={"background": background})).pixels
        for background in ("transparent", "opaque")
    ]
    assert transparent.shape == (*opaque.shape[:2], 4)
    expected = 255 - (255.0 - transparent[..., :3]) / 5
    assert np.abs(opaque - expected).max() <= PIXEL_TOLERANCE


@pytest.mark.parametrize("pipeline", [SoundingToy()])
async def test_sound_is_equal_single_and_batched(pipeline: SoundingToy, layout: Layout) -> None:
    clips = [{"num_frames": 5, "seed": seed, "num_inference_steps": 4 + seed} for seed in range(4)]
    engine = Engine(pipeline, layout, 4)
    together = await asyncio.gather(*(make(engine, **clip) for clip in clips))
    alone = [await make(engine, **clip) for clip in clips]
    engine.close()
    for made, again, clip in zip(together, alone, clips, strict=True):
        assert made.sound is not None and again.sound is not None
        assert np.array_equal(made.sound, again.sound)
        assert np.array_equal(made.pixels, again.pixels)
        expected = generate(pipeline, clip, {})
        np.testing.assert_allclose(made.sound, expected.sound, atol=1e-3)
    first, second = (made.sound for made in together[:2])
    assert first is not None and second is not None
    assert np.abs(first - second).max() > 0.1


class SlowToPrepare(ToyPipeline):
    """Toy pipeline that prepares no request before the gate is open, and records the order."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[str] = []

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        self.prepared.append(fields["prompt"])
        self.gate(np.zeros(()))
        return super().prepare(fields, images)


@pytest.mark.parametrize("pipeline", [SlowToPrepare()])
async def test_tenants_prepare_requests_in_turn(pipeline: SlowToPrepare, engine: Engine) -> None:
    """A request waits for one of another tenant's, however many of these came before it."""
    prompts = ["a0", "a1", "a2", "a3", "b0", "b1"]
    tasks = []
    for prompt in prompts:
        generating = engine.generate({"prompt": prompt}, {}, tenant=prompt[0])
        tasks.append(asyncio.create_task(generating))
        await at_gate(pipeline) if prompt == "a0" else await asyncio.sleep(0)
    canceled = tasks.pop(2)
    canceled.cancel()
    await asyncio.wait([canceled])
    pipeline.gate.open()
    await asyncio.gather(*tasks)
    assert pipeline.prepared == ["a0", "a1", "b0", "b1", "a3"]


async def test_joining_and_leaving_image_changes_no_other(
    engine: Engine, pipeline: ToyPipeline
) -> None:
    """The long image is held in a step while the short image joins."""
    long = {"seed": 1, "num_inference_steps": 8, "phase": "gated"}
    short = {"seed": 2, "num_inference_steps": 2, "phase": "gated"}
    stays = asyncio.create_task(make(engine, **long))
    await at_gate(pipeline)
    visits = asyncio.create_task(make(engine, **short))
    await until(lambda: engine.step_loop.load == 2)
    pipeline.gate.open()
    for task, fields in ((visits, short), (stays, long)):
        assert_is_reference(await task, pipeline, **fields)


async def test_cancellation_allows_at_most_one_more_step(
    engine: Engine, pipeline: ToyPipeline
) -> None:
    task = asyncio.create_task(make(engine, phase="gated", num_inference_steps=50))
    await at_gate(pipeline)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    before = pipeline.gate.count
    pipeline.gate.open()
    await make(engine)  # by now the loop has passed every step that it had sent
    assert pipeline.gate.count - before <= 1


async def test_cancel_while_waiting_for_a_slot(engine: Engine, pipeline: ToyPipeline) -> None:
    running = [asyncio.create_task(make(engine, seed=i, phase="gated")) for i in range(4)]
    await at_gate(pipeline)
    waiting = asyncio.create_task(make(engine, phase="gated", num_inference_steps=50))
    await asyncio.sleep(0)
    waiting.cancel()
    pipeline.gate.open()
    for picture in await asyncio.gather(*running):
        assert picture.steps == 4
    assert pipeline.gate.count <= 16


async def test_nan_fails_only_its_row(engine: Engine, pipeline: ToyPipeline) -> None:
    good = {"seed": 3, "num_inference_steps": 6}
    bad = asyncio.create_task(make(engine, nan_at=2, num_inference_steps=6))
    picture = await make(engine, **good)
    with pytest.raises(GenerationFailed) as failure:
        await bad
    assert failure.value.error.code == "non_finite"
    assert "step 3 of 6" in failure.value.error.message
    assert_is_reference(picture, pipeline, **good)


async def test_out_of_memory_shrinks_the_batch(engine: Engine, pipeline: ToyPipeline) -> None:
    await engine.readiness.warm_up([{"phase": "greedy"}])
    await engine.readiness.larger_ready([{"phase": "greedy"}])
    assert sizes(engine, "greedy") == [1, 2, 4]
    requests = [{"seed": seed, "phase": "greedy"} for seed in range(4)]
    pictures = await asyncio.gather(*(make(engine, **request) for request in requests))
    for picture, request in zip(pictures, requests, strict=True):
        assert_is_reference(picture, pipeline, seed=request["seed"])
    assert sizes(engine, "greedy") == [1], "it is remembered"


async def test_oversized_image_fails_only_itself(engine: Engine, pipeline: ToyPipeline) -> None:
    bad = [asyncio.create_task(make(engine, phase="hopeless", seed=seed)) for seed in range(2)]
    assert_is_reference(await make(engine, seed=5), pipeline, seed=5)
    for task in bad:
        with pytest.raises(GenerationFailed) as failure:
            await task
        assert failure.value.error.code == "out_of_memory"


@pytest.mark.parametrize("stage", ["encode", "decode"])
async def test_error_outside_the_loop_fails_only_its_row(
    engine: Engine, pipeline: ToyPipeline, stage: str
) -> None:
    bad = asyncio.create_task(make(engine, **{stage: "hopeless"}))
    assert_is_reference(await make(engine, seed=5), pipeline, seed=5)
    with pytest.raises(GenerationFailed) as failure:
        await bad
    assert failure.value.error.code == "out_of_memory"


async def test_invalid_request_names_its_field(engine: Engine) -> None:
    with pytest.raises(GenerationFailed) as failure:
        await make(engine, width=33)
    assert failure.value.error.code == "invalid_request"
    assert "width" in failure.value.error.message


async def test_new_bucket_compiles_while_images_run(engine: Engine, pipeline: ToyPipeline) -> None:
    """The new image's program is blocked in the compiler until the running image is done."""
    newcomer = asyncio.create_task(make(engine, phase="slow-to-compile"))
    assert_is_reference(await make(engine, seed=5), pipeline, seed=5)
    assert not newcomer.done()
    pipeline.compile_gate.set()
    assert_is_reference(await newcomer, pipeline)


async def test_steps_and_previews_are_reported(engine: Engine) -> None:
    steps: list[int] = []
    previews: list[asyncio.Task[np.ndarray]] = []

    def on_step(row: Any) -> None:
        steps.append(row.done)
        previews.append(asyncio.create_task(engine.preview(row)))

    await engine.generate({"num_inference_steps": 6}, {}, Observing(on_step))
    assert steps == sorted(steps)
    assert steps[-1] == 6
    for pixels in await asyncio.gather(*previews):
        assert (pixels.dtype, pixels.shape) == (np.uint8, (1, 8, 3))


async def test_each_row_has_the_noise_of_its_own_steps(
    engine: Engine, pipeline: ToyPipeline
) -> None:
    """Step values that are arrays are stacked in batches of every size."""
    requests = [{"seed": seed, "phase": "noisy", "num_inference_steps": 5} for seed in range(3)]
    for picture in await asyncio.gather(*(make(engine, **request) for request in requests)):
        assert_is_reference(picture, pipeline, **{**requests[0], "seed": picture.seed})
    plain = reference(pipeline, {**requests[0], "phase": "plain"}).astype(int)
    assert np.abs(plain - reference(pipeline, requests[0])).mean() > 10, "the noise does nothing"


async def test_video_and_preview_have_four_dimensions(
    engine: Engine, pipeline: ToyPipeline
) -> None:
    fields = {"seed": 4, "num_frames": 5}
    previews: list[asyncio.Task[np.ndarray]] = []

    def on_step(row: Any) -> None:
        previews.append(asyncio.create_task(engine.preview(row)))

    clip = await engine.generate(fields, {}, Observing(on_step))
    assert_is_reference(clip, pipeline, **fields)
    assert clip.pixels.shape[0] == 5
    for pixels in await asyncio.gather(*previews):
        assert (pixels.dtype, pixels.shape) == (np.uint8, (5, 1, 8, 3))


async def test_warm_up_compiles_every_size(engine: Engine) -> None:
    await engine.readiness.warm_up([{"second_phase": "double"}])
    await engine.readiness.larger_ready([{"second_phase": "double"}])
    assert sizes(engine, "plain") == [1, 2, 4]
    assert sizes(engine, "double") == [1, 2, 4]


async def test_batch_that_does_not_compile_runs_as_single_rows(
    engine: Engine, pipeline: ToyPipeline
) -> None:
    await engine.readiness.warm_up([{"phase": "single"}])
    await engine.readiness.larger_ready([{"phase": "single"}])
    assert sizes(engine, "single") == [1]
    requests = [{"seed": seed, "phase": "single"} for seed in range(3)]
    for picture in await asyncio.gather(*(make(engine, **request) for request in requests)):
        assert_is_reference(picture, pipeline, seed=picture.seed)


async def test_failed_compilation_is_retried(engine: Engine, pipeline: ToyPipeline) -> None:
    with pytest.raises(GenerationFailed) as failure:
        await make(engine, phase="flawed")
    assert failure.value.error.code == "internal"
    assert "compiling" in failure.value.error.message
    assert_is_reference(await make(engine, phase="flawed"), pipeline)


async def test_steps_are_counted(engine: Engine) -> None:
    def steps() -> float:
        (family,) = metrics.steps.collect()
        return sum(sample.value for sample in family.samples if sample.labels["model"] == "toy")

    before = steps()
    await asyncio.gather(*(make(engine, seed=i, num_inference_steps=3) for i in range(3)))
    assert steps() - before == 9


async def test_step_loop_error_fails_every_image(engine: Engine, pipeline: ToyPipeline) -> None:
    running = asyncio.create_task(make(engine, phase="gated"))
    await at_gate(pipeline)
    engine.step_loop.submit(None)  # no caller sends this
    pipeline.gate.open()
    with pytest.raises(EngineFailed):
        await running
    assert isinstance(engine.failure.result(), EngineFailed)
    with pytest.raises(EngineFailed):
        await make(engine)


async def undisturbed(engine: Engine, at: int, **fields: Any) -> tuple[EngineOutput, RowSnapshot]:
    """Return an image, and its snapshot after at least `at` steps."""
    tasks: list[asyncio.Task[RowSnapshot]] = []

    def on_step(row: Row) -> None:
        if row.done >= at and not tasks:
            tasks.append(asyncio.create_task(engine.take_snapshot(row)))

    picture = await engine.generate(fields, {}, Observing(on_step))
    return picture, await tasks[0]


async def test_image_resumes_in_another_engine(engine: Engine, layout: Layout) -> None:
    """Later steps keep their own noise, across more than one phase."""
    fields = {"seed": 4, "num_inference_steps": 20, "second_phase": "noisy", "prompt": "a hat"}
    picture, snapshot = await undisturbed(engine, 3, **fields)
    assert set(snapshot.leaves) == {"['latents']"}, "the prompt is encoded again"
    other = Engine(ToyPipeline(), layout, slots=1)
    steps: list[int] = []
    try:
        again = await other.generate(
            fields, {}, Observing(lambda row: steps.append(row.done)), snapshot
        )
        assert (again.pixels == picture.pixels).all()
        assert (again.steps, len(steps)) == (20, 20 - snapshot.done)
        assert again.device_seconds > snapshot.device_seconds > 0
        changed = replace(snapshot, leaves={"['latents']": snapshot.leaves["['latents']"] + 1})
        moved = await other.generate(fields, {}, begin=changed)
        assert (moved.pixels != picture.pixels).any(), "the kept state does nothing"
        for unfit in (replace(snapshot, leaves={}), replace(snapshot, done=21)):
            anew = await other.generate(fields, {}, begin=unfit)
            assert (anew.pixels == picture.pixels).all()
        finished, last_snapshot = await undisturbed(engine, 20, **fields)
        resumed = await other.generate(fields, {}, begin=last_snapshot)
        assert (resumed.pixels == finished.pixels).all()
    finally:
        other.close()


async def test_held_row_does_not_advance(engine: Engine, pipeline: ToyPipeline) -> None:
    """Other rows continue. The snapshot of the held row is that of its last step."""
    rows: list[Row] = []
    fields = {"phase": "gated", "num_inference_steps": 50, "seed": 2}
    task = asyncio.create_task(engine.generate(fields, {}, Observing(rows.append)))
    pipeline.gate.open(3)
    for _ in range(4):  # the fourth step stays at the gate
        await asyncio.to_thread(pipeline.gate.wait)
    await until(lambda: bool(rows))
    holding = asyncio.create_task(engine.pause(rows[0]))
    await asyncio.sleep(0)
    assert not holding.done(), "a step is at the gate"
    pipeline.gate.open()
    await holding
    before, snapshot = pipeline.gate.count, await engine.take_snapshot(rows[0])
    assert 3 < snapshot.done == rows[0].sent < 50
    assert_is_reference(await make(engine, seed=1), pipeline, seed=1)
    assert pipeline.gate.count == before
    again = await engine.generate(fields, {}, begin=snapshot)
    assert_is_reference(again, pipeline, **fields)
    task.cancel()
    await asyncio.wait([task])
