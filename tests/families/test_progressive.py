"""Presets whose first steps are smaller, in every family that draws image to image."""

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
from models.spec.passes import passes, steps_of
from models.spec.progressive import FIELD
from models.spec.quality_presets import GuidanceInterval, Progressive, Quality
from tests.families.suite import EVERY, loaded
from tests.families.test_drawing import assert_alike
from tests.families.test_hires import TWO_PASSES, WITHOUT
from workers.calibration.drawing import Drawer
from workers.engine.engine import Engine
from workers.engine.passes import prepared_passes
from workers.engine.row import Row
from workers.engine.snapshot import RowSnapshot
from workers.programs.batch_sizes import exact

STEPS, BEFORE = 6, 3
"""Steps of an image, and the smaller ones of them."""
GROWS = Progressive(scale=0.5, until=0.5)
PRESETS = {
    "grows": Quality(progressive=GROWS),
    "guided": Quality(progressive=GROWS, guidance=GuidanceInterval(stop=2 / 3)),
}
TEXT_ALONE = [name for name in TWO_PASSES if not EVERY[name].images]
"""Entries whose requests have no images, with which all steps have the image's size."""

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
    spec, least = engine.pipeline.spec, EVERY[family].least_request
    sides = {name: 2 * max(least[name], spec.limits.min_side_px) for name in ("width", "height")}
    asked = {**least, **sides, "seed": 1, "num_inference_steps": STEPS, "quality": "grows"}
    noisy = "euler_ancestral"  # adds noise at each step, where the family has it
    if noisy in spec.schedulers:
        asked["scheduler"] = {"name": noisy}
    return {**spec.defaults, **asked, "num_images": 1, **more}


async def test_company_and_snapshots_change_no_bit(family: str, engine: Engine) -> None:
    """Alone, beside rows of either size, and from a snapshot in either pass."""
    fields = fields_of(family, engine)
    small, full = passes(fields, engine.pipeline.spec)
    assert full is not None and small["width"] * 2 == full["width"]
    kept: dict[int, RowSnapshot] = {}
    told: list[tuple[int, int]] = []
    taking: list[asyncio.Task[None]] = []

    async def keep(row: Row) -> None:
        snapshot = await engine.take_snapshot(row)
        kept[snapshot.done] = snapshot

    def on_step(row: Row) -> None:
        told.append((row.image_done, row.image_steps))
        taking.append(asyncio.ensure_future(keep(row)))

    sides = {name: small[name] for name in ("width", "height")}
    plainly = {**fields, "quality": "exact"}
    together = await asyncio.gather(
        engine.generate(fields, {}, on_step=on_step),
        engine.generate({**plainly, **sides, "seed": 2}, {}),
        engine.generate({**plainly, "seed": 3}, {}),
        engine.generate({**fields, "seed": 4, "quality": "guided"}, {}),
    )
    await asyncio.gather(*taking)
    assert {total for _, total in told} == {STEPS} == {together[0].steps}
    done = [one for one, _ in told]
    assert done == sorted(done) and done[-1] == len(done) == STEPS, "a late loop sees later steps"
    alone = await engine.generate(fields, {})
    assert np.array_equal(alone.pixels, together[0].pixels)
    assert alone.pixels.shape == (fields["height"], fields["width"], 3)
    for at, snapshot in kept.items():
        resumed = await engine.generate(fields, {}, begin=snapshot)
        assert np.array_equal(resumed.pixels, alone.pixels), at
        assert resumed.own_seconds < resumed.device_seconds
    assert min(kept) <= BEFORE < max(kept)
    plain = await engine.generate(plainly, {})
    assert not np.array_equal(plain.pixels, alone.pixels)


async def test_its_passes_are_those_of_an_engine_without_any(family: str, engine: Engine) -> None:
    """Drawn by hand: the small steps' estimate, enlarged, under the noise of the exact image."""
    fields, pipeline = fields_of(family, engine), engine.pipeline
    small, full = passes(fields, pipeline.spec)
    assert full is not None
    *_, row = denoise(pipeline, pipeline.prepare(small, {}))
    estimate = np.asarray(pipeline.spatial({**row, "latents": row["denoised"]}))
    second = pipeline.prepare(full, {"image": latents_file(estimate)})
    whole = pipeline.prepare({**fields, "quality": "exact"}, {})
    assert np.array_equal(second.inputs["noise"], whole.inputs["noise"])
    *_, row = denoise(pipeline, second)
    expected = np.asarray(pipeline.decode(pipeline.weights, row)).astype(int)
    found = (await engine.generate(fields, {})).pixels.astype(int)
    assert np.abs(found - expected).max() <= 1


async def test_calibration_draws_what_an_engine_does(family: str, engine: Engine) -> None:
    """And counts the steps of either size."""
    drawer = Drawer(engine.pipeline, engine.layout, exact(1), None)
    fields = fields_of(family, engine)
    try:
        drawn, whole = drawer(fields), drawer({**fields, "quality": "exact"})
    finally:
        drawer.close()
    assert np.array_equal(drawn.pixels, (await engine.generate(fields, {})).pixels)
    assert 0.5 < drawn.operations / whole.operations < 1


def test_its_rows_share_the_programs_of_exact_ones(family: str, engine: Engine) -> None:
    """Rows of both sizes do; and the steps are those of one schedule, guided as a whole."""
    fields, pipeline = fields_of(family, engine), engine.pipeline
    one, two = prepared_passes(pipeline, fields, {})
    assert two is not None
    for found in (one, two):
        size = {"width": found.prepared.width, "height": found.prepared.height}
        alike = pipeline.prepare({**fields, **size, "quality": "exact"}, {})
        assert found.prepared.bucket == alike.bucket
        assert found.prepared.step_bucket == alike.step_bucket
        assert {step.phase for step in found.prepared.steps} <= {s.phase for s in alike.steps}
    times = [float(step.values["timestep"]) for step in alike.steps]
    assert [float(step.values["timestep"]) for step in two.prepared.steps] == times[BEFORE:]
    assert (len(one.prepared.steps), len(two.prepared.steps)) == (BEFORE, STEPS - BEFORE)
    assert (one.after, two.before) == (STEPS - BEFORE, BEFORE)
    guided = prepared_passes(pipeline, {**fields, "quality": "guided"}, {})
    is_guided = [step.phase.guided for each in guided if each for step in each.prepared.steps]
    assert is_guided in ([True] * 4 + [False] * 2, [False] * STEPS)


def test_every_number_of_steps_is_parted(family: str, folder: Path) -> None:
    """Both passes together have the steps that were asked for, by each model's rounding."""
    spec = loaded(family, folder, "float32", qualities=PRESETS).spec
    for steps in (*range(2, 60), 100, 999):
        fields = {**spec.defaults, "width": 512, "height": 256, "num_inference_steps": steps}
        small, full = passes({**fields, "quality": "grows"}, spec)
        assert full is not None
        without = {name: value for name, value in full.items() if name != FIELD}
        assert steps_of(small, spec) + steps_of(without, spec) == steps
        assert steps_of(full, spec) == steps_of(without, spec)


async def test_sizes_may_share_the_steps_of_a_bucket(layout: Layout, tmp_path: Path) -> None:
    """With padded tokens the image is that of steps of its own sizes, and alone the same bytes."""
    folder = EVERY["flux"].least(tmp_path)
    own, shared = (
        Engine(loaded("flux", folder, "float32", qualities=PRESETS, token_buckets=extra), layout, 2)
        for extra in (0.0, 0.3)
    )
    fields = {**fields_of("flux", own), "width": 72, "height": 56}
    try:
        assert prepared_passes(shared.pipeline, fields, {})[0].prepared.step_bucket
        expected = (await own.generate(fields, {})).pixels
        alone = (await shared.generate(fields, {})).pixels
        beside = {**fields, "width": 64, "height": 64, "seed": 2}
        found, _ = await asyncio.gather(shared.generate(fields, {}), shared.generate(beside, {}))
    finally:
        own.close()
        shared.close()
    assert np.array_equal(found.pixels, alone)
    assert_alike(alone, expected)


@pytest.mark.parametrize("name", sorted(WITHOUT & EVERY.keys()))
def test_others_do_not_have_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"quality\.grows pulls progressive"):
        loaded(name, EVERY[name].least(tmp_path / name), "float32", qualities=PRESETS)
