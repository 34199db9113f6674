"""Images of every family stop at a step, and go on from their states to the same bytes, or by
another prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from models.interface.pipeline import Pipeline, PyTree, denoise, parted
from models.parallel.axis_rules import Layout
from tests.families.suite import EVERY, SUITE, loaded
from workers.engine.engine import Engine
from workers.engine.passes import Told
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


def fields_of(family: str, engine: Engine, **more: Any) -> dict[str, Any]:
    asked = {**engine.pipeline.spec.defaults, **EVERY[family].least_request}
    return {**asked, "num_inference_steps": STEPS, "seed": 1, "num_images": 1, **more}


@pytest.mark.parametrize("engine", ["float32", "bfloat16"], indirect=True)
async def test_a_draft_goes_on_to_the_same_bytes(family: str, engine: Engine) -> None:
    """Stopped and finished in company, and drawn alone in one run."""
    images = EVERY[family].images
    fields, other = fields_of(family, engine), fields_of(family, engine, seed=2)
    told: list[tuple[int, int]] = []

    def count(row: Row) -> None:
        told.append((row.image_done, row.image_steps))

    draft, _ = await asyncio.gather(
        engine.draft(fields, images, STOP, Told(count)),
        engine.generate(other, images),
    )
    kept = await engine.take_snapshot(draft.row)
    assert kept.done == draft.preview.steps == STOP
    assert told[-1] == (STOP, STOP), "it has no more to do"
    assert np.ptp(draft.preview.pixels) > 0
    finished, _ = await asyncio.gather(
        engine.generate(fields, images, begin=kept), engine.generate(other, images)
    )
    straight = await engine.generate(fields, images)
    assert np.array_equal(finished.pixels, straight.pixels)
    assert finished.steps == straight.steps == STEPS
    assert finished.own_seconds < finished.device_seconds


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
async def test_a_branch_has_a_draft_of_another_prompt(family: str, engine: Engine) -> None:
    images = EVERY[family].images
    before, after = (fields_of(family, engine, prompt=text) for text in ("a cat", "red stars"))
    draft = await engine.draft(before, images, STOP, Told())
    kept = await engine.take_snapshot(draft.row)
    branch = (await engine.generate(after, images, begin=kept)).pixels
    for fields in (before, after):
        straight = (await engine.generate(fields, images)).pixels
        assert not np.array_equal(branch, straight)
    expected = by_hand(engine.pipeline, before, after, images).astype(int)
    assert np.abs(branch - expected).max() <= 1


def by_hand(
    pipeline: Pipeline, before: dict[str, Any], after: dict[str, Any], images: Mapping[str, bytes]
) -> np.ndarray:
    """Draw the first steps by one request and the others by another, without an engine."""
    first, second = (pipeline.prepare(fields, images) for fields in (before, after))
    *_, drawn = denoise(pipeline, replace(first, steps=first.steps[:STOP]))

    def begin(weights: PyTree, inputs: PyTree) -> PyTree:
        row = pipeline.encode(weights, inputs)
        return {**row, **{name: drawn[name] for name in OF_STEPS if name in row}}

    going_on = SimpleNamespace(encode=begin, weights=pipeline.weights, step=pipeline.step)
    rest = replace(second, steps=second.steps[STOP:])
    *_, row = denoise(cast(Pipeline, going_on), rest)
    return np.asarray(parted(pipeline.decode(pipeline.weights, row))[0])
