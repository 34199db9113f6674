"""Hires fix in every family with image-to-image: two passes, compared with two requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from models.interface.image_start import latents_file
from models.parallel.axis_rules import Layout
from models.spec.hires import TASK, with_defaults
from tests.families.suite import EVERY, SUITE, loaded
from tests.families.test_generation import LAYOUTS, OF_VARIANTS, assert_alike
from tests.families.test_upscaling import drawn_larger, settings
from tests.parallel.layouts import layout as layout_of
from tests.parallel.placed_pipeline import placed
from tests.workers.observing import Observing
from workers.engine.engine import Engine
from workers.engine.passes import prepared_passes
from workers.engine.row import Row
from workers.engine.snapshot import RowSnapshot
from workers.loading.upscalers import load_upscalers
from workers.programs.batch_sizes import exact
from workers.programs.second_pass import image_file

Fields = dict[str, Any]
FIRST, SECOND = 4, 5
"""Steps of the first pass, and of the second pass before `strength` shortens it."""


WITHOUT = frozenset(name for name, entry in EVERY.items() if not entry.has_strength)
"""Models without image-to-image with a strength."""
TWO_PASSES = [name for name in EVERY if name not in WITHOUT]


@pytest.fixture(scope="module", params=TWO_PASSES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].least(tmp_path_factory.mktemp("least") / family)


@pytest.fixture
async def engine(family: str, folder: Path, layout: Layout) -> AsyncIterator[Engine]:
    pipeline = loaded(family, folder, "float32")
    upscalers = load_upscalers(settings(family, folder), pipeline, jax.devices()[0])
    engine = Engine(pipeline, layout, slots=4, upscalers=upscalers)
    yield engine
    engine.close()


def plain(family: str, engine: Engine) -> Fields:
    request = {**EVERY[family].smallest_request, "seed": 1, "num_inference_steps": FIRST}
    noisy = "euler_ancestral"  # adds noise at each step, where the family has it
    if noisy in engine.pipeline.spec.schedulers:
        request["scheduler"] = {"name": noisy}
    return {**engine.pipeline.spec.defaults, **request}


def with_hires(fields: Fields, engine: Engine, upscaler: str) -> Fields:
    multiple = engine.pipeline.spec.limits.size_multiple_px
    options = {"scale": 1.6, "upscaler": upscaler, "num_inference_steps": SECOND}
    return {**fields, "hires": with_defaults(options, fields, multiple)}


def second(fields: Fields, engine: Engine) -> Fields:
    """Return the request of image-to-image that the second pass equals."""
    overrides = {name: value for name, value in fields["hires"].items() if name != "upscaler"}
    defaults = engine.pipeline.spec.task_defaults.get(TASK, {})
    return {**defaults, **{k: v for k, v in fields.items() if k != "hires"}, **overrides}


async def first_latents(engine: Engine, fields: Fields, images: Mapping[str, bytes]) -> bytes:
    """Return the latents that the first pass ends with."""
    rows: list[Row] = []
    base_fields = {name: value for name, value in fields.items() if name != "refiner"}
    await engine.generate(base_fields, images, observer=Observing(rows.append))
    return latents_file(np.asarray(engine.pipeline.spatial(rows[-1].verified_state)))


async def test_two_passes_are_two_requests(family: str, engine: Engine) -> None:
    """Images are the same in a batch, alone, and resumed from a snapshot in either pass, with each
    upscaler.

    An unfit snapshot of the second pass is ignored.
    """
    fields, images = plain(family, engine), EVERY[family].images
    assert "hires" in engine.pipeline.spec.fields, "it belongs to WITHOUT"
    requests = [with_hires(fields, engine, name) for name in ("latent", "lanczos", "twice")]
    snapshots: dict[int, RowSnapshot] = {}
    decoded: dict[int, RowSnapshot] = {}
    progress: list[tuple[int, int]] = []
    taking: list[asyncio.Task[None]] = []

    async def keep(row: Row, among: dict[int, RowSnapshot]) -> None:
        snapshot = await engine.take_snapshot(row)
        among[snapshot.done] = snapshot

    def on_step(row: Row) -> None:
        progress.append((row.image_done, row.image_steps))
        taking.append(asyncio.ensure_future(keep(row, snapshots)))

    def on_decoded(row: Row) -> None:
        taking.append(asyncio.ensure_future(keep(row, decoded)))

    together = await asyncio.gather(
        engine.generate(requests[0], images, observer=Observing(on_step)),
        engine.generate(requests[1], images, observer=Observing(on_decoded)),
        engine.generate(requests[2], images),
        engine.generate({**second(requests[1], engine), "seed": 2}, {**images, "image": square()}),
    )
    await asyncio.gather(*taking)
    by_hand = [
        await first_latents(engine, fields, images),
        *await first_images(engine, fields, images),
    ]
    for output, request, image in zip(together, requests, by_hand, strict=False):
        expected = await engine.generate(second(request, engine), {**images, "image": image})
        assert np.array_equal(output.pixels, expected.pixels)
        target = request["hires"]
        assert output.pixels.shape == (target["height"], target["width"], 3)
    pictures = [item.pixels for item in together]
    assert not np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[1], pictures[2])
    steps, (item, _) = together[0].steps, prepared_passes(engine.pipeline, requests[0], images)
    first = len(item.prepared.steps)
    assert {total for _, total in progress} == {steps}
    counts = [item for item, _ in progress]
    assert counts == sorted(counts) and counts[-1] == len(counts) == steps, (
        "a late loop sees later steps"
    )
    assert first < steps <= first + SECOND
    broken = replace(
        snapshots[max(snapshots)], leaves={"['latents']": np.zeros((1, 1), np.float32)}
    )
    restarted = await engine.generate(requests[0], images, begin=broken)
    assert np.array_equal(restarted.pixels, pictures[0]), "it begins with its first pass"
    for at in {1, first, first + 1, steps} & snapshots.keys():
        resumed = await engine.generate(requests[0], images, begin=snapshots[at])
        assert np.array_equal(resumed.pixels, pictures[0]), at
        assert resumed.claim_seconds < resumed.device_seconds
    for at in {first + 1} & decoded.keys():
        resumed = await engine.generate(requests[1], images, begin=decoded[at])
        assert np.array_equal(resumed.pixels, pictures[1]), "its steps' noise is another"


SPLIT = [name for name in TWO_PASSES if name in SUITE]
"""Families themselves. Their variants' passes begin with the same data."""


def on_layout(family: str) -> str:
    """Return a layout for the family. Together, the families' layouts have every axis."""
    return OF_VARIANTS[SPLIT.index(family) % len(OF_VARIANTS)]


def test_families_rotate_over_all_axes() -> None:
    assert {on_layout(name) for name in SPLIT} == {*OF_VARIANTS}


@pytest.mark.parametrize("family", SPLIT)
async def test_both_passes_on_a_layout_match_one_device(
    family: str, layout: Layout, tmp_path: Path
) -> None:
    """Latents and image are enlarged on the host, from parts on several devices."""
    pipeline = loaded(family, EVERY[family].make(tmp_path), "float32")
    split = layout_of(**LAYOUTS[on_layout(family)])
    single = Engine(pipeline, layout, 1)
    several = Engine(
        placed(pipeline, split), split, split.mesh.shape["data"], exact(split.mesh.shape["data"])
    )
    plain = {**pipeline.spec.defaults, **EVERY[family].request, "num_inference_steps": 2}
    requests = [with_hires(plain, single, name) for name in ("latent", "lanczos")]
    try:
        for fields in requests:
            images = EVERY[family].images
            expected = (await single.generate(fields, images)).pixels
            assert_alike((await several.generate(fields, images)).pixels, expected)
            first = await single.generate({**fields, "seed": fields["seed"] + 1}, images)
            with pytest.raises(AssertionError):
                assert_alike(first.pixels, expected)
    finally:
        single.close()
        several.close()


def square() -> bytes:
    return image_file(np.full((8, 8, 3), 99, np.uint8))


async def first_images(
    engine: Engine, fields: Fields, images: Mapping[str, bytes]
) -> tuple[bytes, bytes]:
    """Return the first pass's image, and the same image upscaled."""
    base_fields = {name: value for name, value in fields.items() if name != "refiner"}
    image = (await engine.generate(base_fields, images)).pixels
    upscaler = engine.upscalers.loaded("twice")
    return image_file(image), image_file(drawn_larger(upscaler, image, 2))


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_families_without_strength_reject_hires_fix(name: str, tmp_path: Path) -> None:
    spec = loaded(name, EVERY[name].least(tmp_path / name), "float32").spec
    assert spec.hires_upscalers == tuple(spec.enlargers), "of its own latents alone"
    begins = "strength" in spec.fields and spec.strength_needs == "image"
    assert TASK not in spec.tasks or not begins
