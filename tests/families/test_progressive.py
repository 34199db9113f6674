"""Presets whose first steps have a smaller size, in every family with image-to-image."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.checkpoint.folder import CheckpointError
from models.interface.image_start import latents_file
from models.interface.pipeline import denoise
from models.parallel.axis_rules import Layout
from models.spec.passes import PROGRESSIVE, passes, steps_of
from models.spec.quality_presets import GuidanceInterval, Progressive, Quality
from tests.families.suite import EVERY, loaded
from tests.families.test_generation import assert_alike
from tests.families.test_hires import TWO_PASSES, WITHOUT
from tests.workers.observing import Observing
from workers.calibration.drawing import ImageGenerator
from workers.engine.engine import Engine
from workers.engine.passes import prepared_passes
from workers.engine.row import Row
from workers.engine.snapshot import RowSnapshot
from workers.programs.batch_sizes import exact

STEPS, BEFORE = 6, 3
"""Steps of an image, and its steps of the smaller size."""
GROWS = Progressive(scale=0.5, until=0.5)
PRESETS = {
    "grows": Quality(progressive=GROWS),
    "guided": Quality(progressive=GROWS, guidance=GuidanceInterval(stop=2 / 3)),
}
TEXT_ALONE = [name for name in TWO_PASSES if not EVERY[name].images]
"""Entries whose requests have no images. With images, all steps have the image's size."""

Fields = dict[str, Any]


@pytest.fixture(scope="module", params=TEXT_ALONE)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].least(tmp_path_factory.mktemp("least") / family)


@pytest.fixture
async def engine(family: str, folder: Path, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(loaded(family, folder, "float32", qualities=PRESETS), layout, slots=4)
    yield engine
    engine.close()


def fields_of(family: str, engine: Engine, **more: Any) -> Fields:
    spec, least = engine.pipeline.spec, EVERY[family].smallest_request
    sides = {name: 2 * max(least[name], spec.limits.min_side_px) for name in ("width", "height")}
    request = {**least, **sides, "seed": 1, "num_inference_steps": STEPS, "quality": "grows"}
    noisy = "euler_ancestral"  # adds noise at each step, where the family has it
    if noisy in spec.schedulers:
        request["scheduler"] = {"name": noisy}
    return {**spec.defaults, **request, "num_images": 1, **more}


async def test_batching_and_snapshots_change_no_bit(family: str, engine: Engine) -> None:
    """An image is the same alone, in a batch with rows of either size, and resumed from a snapshot
    in either pass."""
    fields = fields_of(family, engine)
    small, full = passes(fields, engine.pipeline.spec)
    assert full is not None and small["width"] * 2 == full["width"]
    snapshots: dict[int, RowSnapshot] = {}
    progress: list[tuple[int, int]] = []
    taking: list[asyncio.Task[None]] = []

    async def keep(row: Row) -> None:
        snapshot = await engine.take_snapshot(row)
        snapshots[snapshot.done] = snapshot

    def on_step(row: Row) -> None:
        progress.append((row.image_done, row.image_steps))
        taking.append(asyncio.ensure_future(keep(row)))

    sides = {name: small[name] for name in ("width", "height")}
    exact_fields = {**fields, "quality": "exact"}
    together = await asyncio.gather(
        engine.generate(fields, {}, observer=Observing(on_step)),
        engine.generate({**exact_fields, **sides, "seed": 2}, {}),
        engine.generate({**exact_fields, "seed": 3}, {}),
        engine.generate({**fields, "seed": 4, "quality": "guided"}, {}),
    )
    await asyncio.gather(*taking)
    assert {total for _, total in progress} == {STEPS} == {together[0].steps}
    counts = [count for count, _ in progress]
    assert counts == sorted(counts) and counts[-1] == len(counts) == STEPS, (
        "a late loop sees later steps"
    )
    alone = await engine.generate(fields, {})
    assert np.array_equal(alone.pixels, together[0].pixels)
    assert alone.pixels.shape == (fields["height"], fields["width"], 3)
    for at, snapshot in snapshots.items():
        resumed = await engine.generate(fields, {}, begin=snapshot)
        assert np.array_equal(resumed.pixels, alone.pixels), at
        assert resumed.claim_seconds < resumed.device_seconds
    assert min(snapshots) <= BEFORE < max(snapshots)
    plain = await engine.generate(exact_fields, {})
    assert not np.array_equal(plain.pixels, alone.pixels)


async def test_progressive_passes_equal_separate_engine_passes(family: str, engine: Engine) -> None:
    """Both passes equal steps without an engine: the estimate of the small steps is enlarged, and
    gets the noise of the exact image."""
    fields, pipeline = fields_of(family, engine), engine.pipeline
    small, full = passes(fields, pipeline.spec)
    assert full is not None
    *_, row = denoise(pipeline, pipeline.prepare(small, {}))
    estimate = np.asarray(pipeline.spatial({**row, "latents": row["denoised"]}))
    second = pipeline.prepare(full, {"image": latents_file(estimate)})
    exact = pipeline.prepare({**fields, "quality": "exact"}, {})
    assert np.array_equal(second.inputs["noise"], exact.inputs["noise"])
    *_, row = denoise(pipeline, second)
    expected = np.asarray(pipeline.decode(pipeline.weights, row)).astype(int)
    actual = (await engine.generate(fields, {})).pixels.astype(int)
    assert np.abs(actual - expected).max() <= 1


async def test_calibration_matches_the_engine(family: str, engine: Engine) -> None:
    """The operations that calibration counts, with steps of either size, are those of the
    engine."""
    generator = ImageGenerator(engine.pipeline, engine.layout, exact(1), None)
    fields = fields_of(family, engine)
    try:
        drawing, full = generator(fields), generator({**fields, "quality": "exact"})
    finally:
        generator.close()
    assert np.array_equal(drawing.pixels, (await engine.generate(fields, {})).pixels)
    assert 0.5 < drawing.operations / full.operations < 1


def test_progressive_rows_share_programs_with_exact_rows(family: str, engine: Engine) -> None:
    """Rows of both sizes share programs. The steps are those of one schedule, guided as a whole."""
    fields, pipeline = fields_of(family, engine), engine.pipeline
    first, second = prepared_passes(pipeline, fields, {})
    assert second is not None
    for image_pass in (first, second):
        size = {"width": image_pass.prepared.width, "height": image_pass.prepared.height}
        alike = pipeline.prepare({**fields, **size, "quality": "exact"}, {})
        assert image_pass.prepared.bucket == alike.bucket
        assert image_pass.prepared.step_bucket == alike.step_bucket
        assert {step.program for step in image_pass.prepared.steps} <= {
            s.program for s in alike.steps
        }
    times = [float(step.values["timestep"]) for step in alike.steps]
    assert [float(step.values["timestep"]) for step in second.prepared.steps] == times[BEFORE:]
    assert (len(first.prepared.steps), len(second.prepared.steps)) == (BEFORE, STEPS - BEFORE)
    assert (first.after, second.before) == (STEPS - BEFORE, BEFORE)
    guided = prepared_passes(pipeline, {**fields, "quality": "guided"}, {})
    is_guided = [step.program.guided for each in guided if each for step in each.prepared.steps]
    assert is_guided in ([True] * 4 + [False] * 2, [False] * STEPS)


def test_both_passes_have_the_requested_steps_in_total(family: str, folder: Path) -> None:
    """Both passes together have the requested number of steps, by each model's rounding."""
    spec = loaded(family, folder, "float32", qualities=PRESETS).spec
    for steps in (*range(2, 60), 100, 999):
        fields = {**spec.defaults, "width": 512, "height": 256, "num_inference_steps": steps}
        small, full = passes({**fields, "quality": "grows"}, spec)
        assert full is not None
        equal = {name: value for name, value in full.items() if name != PROGRESSIVE}
        assert steps_of(small, spec) + steps_of(equal, spec) == steps
        assert steps_of(full, spec) == steps_of(equal, spec)


async def test_sizes_may_share_the_steps_of_a_bucket(layout: Layout, tmp_path: Path) -> None:
    """An image with smaller first steps and padded tokens equals that of exact steps, and has the
    same bytes alone."""
    folder = EVERY["flux"].least(tmp_path)
    unpadded, shared = (
        Engine(loaded("flux", folder, "float32", qualities=PRESETS, token_buckets=extra), layout, 2)
        for extra in (0.0, 0.3)
    )
    fields = {**fields_of("flux", unpadded), "width": 72, "height": 56}
    try:
        assert prepared_passes(shared.pipeline, fields, {})[0].prepared.step_bucket
        expected = (await unpadded.generate(fields, {})).pixels
        alone = (await shared.generate(fields, {})).pixels
        neighbour = {**fields, "width": 64, "height": 64, "seed": 2}
        output, _ = await asyncio.gather(
            shared.generate(fields, {}), shared.generate(neighbour, {})
        )
    finally:
        unpadded.close()
        shared.close()
    assert np.array_equal(output.pixels, alone)
    assert_alike(alone, expected)


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_other_families_reject_progressive_presets(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"quality\.grows: uses progressive"):
        loaded(name, EVERY[name].least(tmp_path / name), "float32", qualities=PRESETS)
