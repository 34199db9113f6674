"""Exact batching, by the engine and real networks of every family: an image has the same bits
alone, beside any others, at any place of a padded batch, and on another engine midway."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import registry
from models.interface.pipeline import Fields, Pipeline
from models.parallel.axis_rules import Layout
from models.spec.quality_presets import Quality, StepCache
from models.spec.step_plan import PlannedCache
from tests.families.adapters import Kept
from tests.families.suite import EVERY, SUITE, VARIANTS, loaded
from tests.workers.resume import disturbed_at
from workers.engine.batching import Batch
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.engine.snapshot import RowSnapshot
from workers.programs.batch_sizes import exact, fast
from workers.programs.step_latency import BatchLayout

DTYPES = ("float32", "bfloat16")
ROWS = 3
CACHED = {"cached": Quality(step_cache=StepCache(kind="teacache", threshold=0.3))}
PLANNED = {
    "planned": Quality(
        step_cache=PlannedCache(kind="planned", steps=6, whole=(0, 1, 3), estimate="taylor")
    ),
}


def is_left_out(family: str, pipeline: str) -> bool:
    """Return whether that dtype is not tried with that entry. Read by `conftest.py`.

    A variant's network is its family's: it is held in the dtype whose sums depend on more.
    """
    return family in VARIANTS and pipeline != "bfloat16"


def presets(family: str) -> dict[str, Quality]:
    """Presets that requests of `mixed` name."""
    entry = EVERY[family]
    return (CACHED if entry.step_caches else {}) | (PLANNED if entry.step_plans else {})


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].least(tmp_path_factory.mktemp("least") / family)


@pytest.fixture(scope="module", params=DTYPES)
def pipeline(request: pytest.FixtureRequest, family: str, folder: Path) -> Pipeline:
    return loaded(family, folder, request.param, qualities=presets(family))


@pytest.fixture(scope="module")
def kept(pipeline: Pipeline) -> Kept:
    """What one engine of the pipeline has compiled, for the others, too."""
    return Kept()


def mixed(family: str) -> list[Fields]:
    """Eight of other lengths, prompts and guidance, some of presets with step caches.

    Two have weights: their prompts share batches with plain ones.
    """
    entry = EVERY[family]
    base, turns, scale = entry.least_request, entry.company, entry.scale
    caches = (
        "planned" if entry.step_plans else "exact",
        "cached" if entry.step_caches else "exact",
    )
    return [
        {
            **base,
            **turns[seed % len(turns)],
            "seed": seed,
            "prompt": ("a red circle", "a star", "", "a (blue:1.4) [star] on green")[seed % 4],
            "prompt_syntax": "weighted" if seed % 4 == 3 else "plain",
            "num_inference_steps": 4 + seed,
            scale: base[scale] + seed,
            "quality": caches[seed // 2 % 2] if seed % 2 else "exact",
        }
        for seed in range(8)
    ]


@dataclass(frozen=True)
class Drawn:
    pixels: bytes
    latents: bytes
    """After the last step: of float32, where rounding shows that pixels hide."""


def images(engine: Engine) -> Mapping[str, bytes]:
    """Images that every request of the suite to that model has."""
    return EVERY[engine.pipeline.spec.name].images


async def one(engine: Engine, fields: Fields, begin: RowSnapshot | None = None) -> Drawn:
    states: list[Any] = []
    picture = await engine.generate(
        fields, images(engine), lambda row: states.append(row.checked.state["latents"]), begin
    )
    return Drawn(picture.pixels.tobytes(), np.asarray(states[-1]).tobytes())


async def drawn(engine: Engine, requests: Sequence[Fields], together: bool) -> list[Drawn]:
    if together:
        return await asyncio.gather(*(one(engine, fields) for fields in requests))
    return [await one(engine, fields) for fields in requests]


async def test_company_changes_no_bit(
    pipeline: Pipeline, family: str, layout: Layout, kept: Kept
) -> None:
    """One row at a time with four slots, and with one; where one goes on from what the other one
    has kept, a step cache too."""
    requests = mixed(family)
    engine, other = (Engine(pipeline, layout, slots, executables=kept) for slots in (4, 1))
    try:
        together = await drawn(engine, requests, together=True)
        assert together == await drawn(other, requests, together=False)
        for last in (-1, -3):  # a cache of each kind
            _, kept = await disturbed_at(2, engine, requests[last], images(engine))
            assert await one(other, requests[last], kept) == together[last]
    finally:
        engine.close()
        other.close()
    assert len({picture.pixels for picture in together}) == len(requests), "all alike"


async def test_a_padded_batch_is_alike_at_every_place(
    pipeline: Pipeline, family: str, layout: Layout, kept: Kept
) -> None:
    """One step of each row at each place, beside others and beside its likes; and whole images,
    together and alone."""
    requests = mixed(family)[::2]
    engine = Engine(pipeline, layout, 4, exact(ROWS), executables=kept)
    try:
        together = await drawn(engine, requests, together=True)
        assert together == await drawn(engine, requests, together=False)
        rows = [begun(engine, fields) for fields in requests[:ROWS]]
    finally:
        engine.close()
    alone = [stepped(engine, [row])[0] for row in rows]
    for turn in range(ROWS):
        turned = [*range(turn, ROWS), *range(turn)]
        found = stepped(engine, [rows[number] for number in turned])
        assert found == [alone[number] for number in turned]


def begun(engine: Engine, fields: Fields) -> Row:
    prepared = engine.pipeline.prepare(fields, images(engine))
    shape = engine.programs.of(prepared)
    state = engine._encode(shape, prepared)
    return Row(shape, prepared.steps, state, lambda row: None, lambda row, failure: None)


def stepped(engine: Engine, rows: list[Row], places: int = ROWS) -> list[bytes]:
    """The rows' latents after their first step, in one batch of so many places."""
    batch = Batch(rows[0].phase, tuple(rows), BatchLayout(places))
    states, _ = batch.run(engine.step_loop._weights.load_expert(batch.phase.expert))
    return [np.asarray(state["latents"]).tobytes() for state in states[: len(rows)]]


async def test_what_fast_batching_tells_is_what_it_does(
    layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As many levels as lie between the images of its batch sizes, measured once."""
    request = SUITE["flux"].least_request
    folder = SUITE["flux"].least(tmp_path_factory.mktemp("flux"))
    flux = registry.load("flux", str(folder), "bfloat16", {})
    kept = Kept()
    engine = Engine(flux, layout, 2, fast(2), executables=kept)
    alone = Engine(flux, layout, 2, executables=kept)
    try:
        await engine.warm_up([request])
        await engine.larger_ready([request])
        told = await engine.levels(request)
        one = (await alone.generate(request, {})).pixels.astype(int)
        prepared = flux.prepare(request, {})
        shape = engine.programs.of(prepared)
        del shape.phases[prepared.steps[0].phase].programs[BatchLayout(1)]
        two = (await engine.generate(request, {})).pixels
    finally:
        engine.close()
        alone.close()
    assert told == np.abs(two - one).max()
