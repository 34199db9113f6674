"""Auditions of every family: images stop at a step, and resume with the same or another prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from models.interface.pipeline import Pipeline, PyTree, denoise, split_sound
from models.parallel.axis_rules import Layout
from models.spec.request import RequestError
from tests.families.suite import EVERY, SUITE, loaded
from tests.workers.observing import Observing
from workers.engine.engine import Engine
from workers.engine.generation import ImageRequest
from workers.engine.passes import position_after
from workers.engine.row import Row

STEPS, STOP = 4, 2
OF_STEPS = ("latents", "denoised", "history")
"""Parts of a row that steps change."""


@pytest.fixture(scope="module", params=SUITE)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].least(tmp_path_factory.mktemp("least") / family)


@pytest.fixture
async def engine(
    family: str, folder: Path, layout: Layout, request: pytest.FixtureRequest
) -> AsyncIterator[Engine]:
    engine = Engine(loaded(family, folder, request.param), layout, slots=2)
    yield engine
    engine.close()


MORE_STEPS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "flux": (STEPS, 8, 4, {}),
    "krea2": (STEPS, 8, 4, {}),
    "zimage": (STEPS, 8, 4, {}),
    "wan": (STEPS, 7, 4, {"scheduler": {"name": "flow_match_euler"}}),
    "sdxl": (10, 20, 5, {}),
}
"""Steps of a draft and of its continuation, the step at which it continues, and further fields, of
families whose schedules allow it."""


def test_drafts_continue_with_more_steps_if_the_schedule_allows(family: str, folder: Path) -> None:
    pipeline = loaded(family, folder, "float32")
    few, more, position, fields = MORE_STEPS.get(family, (STEPS, 2 * STEPS, 0, {}))
    request = {**pipeline.spec.defaults, **EVERY[family].smallest_request, "seed": 1, **fields}
    draft, longer = (
        pipeline.prepare({**request, "num_inference_steps": steps}, EVERY[family].images).steps
        for steps in (few, more)
    )
    if position:
        assert position_after(draft, STOP, longer) == position
    else:
        with pytest.raises(RequestError, match=f"noise level after step {STOP} of {few}"):
            position_after(draft, STOP, longer)


def fields_of(family: str, engine: Engine, **more: Any) -> dict[str, Any]:
    request = {**engine.pipeline.spec.defaults, **EVERY[family].smallest_request}
    return {**request, "num_inference_steps": STEPS, "seed": 1, "num_images": 1, **more}


@pytest.mark.parametrize("engine", ["float32", "bfloat16"], indirect=True)
async def test_draft_finishes_with_the_same_bytes(family: str, engine: Engine) -> None:
    """An image stopped and finished in batches has the bytes of an image that runs alone."""
    images = EVERY[family].images
    fields, other = fields_of(family, engine), fields_of(family, engine, seed=2)
    progress: list[tuple[int, int]] = []

    def count(row: Row) -> None:
        progress.append((row.image_done, row.image_steps))

    draft, _ = await asyncio.gather(
        engine.draft(ImageRequest(fields, images), STOP, Observing(count)),
        engine.generate(other, images),
    )
    snapshot = await engine.take_snapshot(draft.row)
    assert snapshot.done == draft.preview.steps == STOP
    assert progress[-1] == (STOP, STOP), "it has no more to do"
    assert np.ptp(draft.preview.pixels) > 0
    finished, _ = await asyncio.gather(
        engine.generate(fields, images, begin=snapshot), engine.generate(other, images)
    )
    uninterrupted = await engine.generate(fields, images)
    assert np.array_equal(finished.pixels, uninterrupted.pixels)
    assert finished.steps == uninterrupted.steps == STEPS
    assert finished.claim_seconds < finished.device_seconds


def branches(family: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return fields of a draft and of its branch, by what differs."""
    guided = EVERY[family].guided
    stronger = {name: 2 * value for name, value in guided.items() if isinstance(value, float)}
    return {
        "prompt": ({"prompt": "a cat"}, {"prompt": "red stars"}),
        "guidance": ({**guided}, {**guided, **stronger}),
    }


@pytest.mark.parametrize("difference", ["prompt", "guidance"])
@pytest.mark.parametrize("engine", ["float32"], indirect=True)
async def test_branch_continues_its_draft_with_other_fields(
    family: str, engine: Engine, difference: str
) -> None:
    images = EVERY[family].images
    before, after = (fields_of(family, engine, **fields) for fields in branches(family)[difference])
    draft = await engine.draft(ImageRequest(before, images), STOP)
    snapshot = await engine.take_snapshot(draft.row)
    branch = (await engine.generate(after, images, begin=snapshot)).pixels
    for fields in (before, after):
        uninterrupted = (await engine.generate(fields, images)).pixels
        assert not np.array_equal(branch, uninterrupted)
    expected = by_hand(engine.pipeline, before, after, images).astype(int)
    assert np.abs(branch - expected).max() <= 1


def by_hand(
    pipeline: Pipeline, before: dict[str, Any], after: dict[str, Any], images: Mapping[str, bytes]
) -> np.ndarray:
    """Generate the first steps of one request and the other steps of another, without an engine."""
    first, second = (pipeline.prepare(fields, images) for fields in (before, after))
    *_, stopped = denoise(pipeline, replace(first, steps=first.steps[:STOP]))

    def begin(weights: PyTree, inputs: PyTree) -> PyTree:
        row = pipeline.encode(weights, inputs)
        return {**row, **{name: stopped[name] for name in OF_STEPS if name in row}}

    going_on = SimpleNamespace(encode=begin, weights=pipeline.weights, step=pipeline.step)
    remaining = replace(second, steps=second.steps[STOP:])
    *_, row = denoise(cast(Pipeline, going_on), remaining)
    return np.asarray(split_sound(pipeline.decode(pipeline.weights, row))[0])
