"""Exact batching, with real networks of every family.

An image has the same bits alone, in any batch, at any place of a padded batch, and resumed by
another engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from models import registry
from models.interface.pipeline import Fields, Pipeline
from models.parallel.axis_rules import Layout
from models.spec.quality_presets import Quality, StepCache
from models.spec.step_plan import PlannedCache
from tests.families.adapters import MemoryCache
from tests.families.suite import EVERY, SUITE, VARIANTS, loaded
from tests.workers.observing import Observing
from tests.workers.resume import disturbed_at
from workers.engine.batching import Batch
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.engine.snapshot import RowSnapshot
from workers.programs.batch_sizes import exact, fast
from workers.programs.step_latency import BatchLayout

DTYPES = ("float32", "bfloat16")
ROWS = 3
PROMPT_BYTES = 1 << 26
CACHED = {"cached": Quality(step_cache=StepCache(kind="teacache", threshold=0.3))}
PLANNED = {
    "planned": Quality(
        step_cache=PlannedCache(kind="planned", steps=6, whole=(0, 1, 3), estimate="taylor")
    ),
}


def is_left_out(family: str, pipeline: str) -> bool:
    """Return whether a dtype is not tested with an entry. `conftest.py` calls this.

    A variant has its family's network: it is tested in the dtype that rounds most.
    """
    return family in VARIANTS and pipeline != "bfloat16"


def presets(family: str) -> dict[str, Quality]:
    """Return the presets that requests of `mixed` name."""
    entry = EVERY[family]
    return (CACHED if entry.step_caches else {}) | (PLANNED if entry.step_plans else {})


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].least(tmp_path_factory.mktemp("least") / family)


@pytest.fixture(scope="module", params=DTYPES)
def pipeline(request: pytest.FixtureRequest, family: str, folder: Path) -> Pipeline:
    return loaded(family, folder, request.param, qualities=presets(family))


@pytest.fixture(scope="module")
def kept(pipeline: Pipeline) -> MemoryCache:
    """Return the executables that engines of the pipeline share."""
    return MemoryCache()


def mixed(family: str) -> list[Fields]:
    """Return eight requests of other lengths, prompts and guidance, some with step caches.

    Two have weighted prompts, which share batches with plain prompts.
    """
    entry = EVERY[family]
    base, turns, scale = entry.smallest_request, entry.batch_variants, entry.scale
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
class RowOutput:
    pixels: bytes
    latents: bytes
    """Latents after the last step, in float32: they show rounding that pixels hide."""


def images(engine: Engine) -> Mapping[str, bytes]:
    """Return the images of every request of the suite to that model."""
    return EVERY[engine.pipeline.spec.name].images


async def one(engine: Engine, fields: Fields, begin: RowSnapshot | None = None) -> RowOutput:
    states: list[Any] = []
    picture = await engine.generate(
        fields,
        images(engine),
        Observing(lambda row: states.append(row.progress.state["latents"])),
        begin,
    )
    return RowOutput(picture.pixels.tobytes(), np.asarray(states[-1]).tobytes())


async def drawn(engine: Engine, requests: Sequence[Fields], together: bool) -> list[RowOutput]:
    if together:
        return await asyncio.gather(*(one(engine, fields) for fields in requests))
    return [await one(engine, fields) for fields in requests]


async def test_batching_changes_no_bit(
    pipeline: Pipeline, family: str, layout: Layout, kept: MemoryCache
) -> None:
    """Images are the same in a batch of an engine of four slots and alone in an engine of one,
    although only the first engine reuses encoded prompts.

    Images resume in the other engine, too.
    """
    requests, before = mixed(family), reused_prompts(pipeline)
    engine, other = (
        Engine(pipeline, layout, slots, executables=kept, prompt_cache_bytes=size)
        for slots, size in ((4, PROMPT_BYTES), (1, 0))
    )
    try:
        together = await drawn(engine, requests, together=True)
        assert together == await drawn(other, requests, together=False)
        for last in (-1, -3):  # a step cache of each kind
            _, kept = await disturbed_at(2, engine, requests[last], images(engine))
            assert await one(other, requests[last], kept) == together[last]
    finally:
        engine.close()
        other.close()
    assert len({picture.pixels for picture in together}) == len(requests), "all alike"
    assert reused_prompts(pipeline) > before


def reused_prompts(pipeline: Pipeline) -> float:
    labels = {"model": pipeline.spec.name, "result": "hit"}
    return REGISTRY.get_sample_value("atelier_prompt_encodings_total", labels) or 0.0


async def test_padded_batch_is_equal_at_every_position(
    pipeline: Pipeline, family: str, layout: Layout, kept: MemoryCache
) -> None:
    """Each row's step has the same bits at each position of a padded batch, with other rows and
    with copies of itself.

    Whole images are compared, too.
    """
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
        actual = stepped(engine, [rows[number] for number in turned])
        assert actual == [alone[number] for number in turned]


def begun(engine: Engine, fields: Fields) -> Row:
    prepared = engine.pipeline.prepare(fields, images(engine))
    shape = engine.programs.of(prepared)
    state = engine._stages.encode(shape, prepared)
    return Row(shape, prepared.steps, state, lambda row: None, lambda row, failure: None)


def stepped(engine: Engine, rows: list[Row], places: int = ROWS) -> list[bytes]:
    """Return the rows' latents after their first step, in one batch of `places` rows."""
    batch = Batch(rows[0].step_kind, tuple(rows), BatchLayout(places))
    states, _ = batch.run(engine.step_loop._weights.load_expert(batch.step_kind.expert))
    return [np.asarray(state["latents"]).tobytes() for state in states[: len(rows)]]


async def test_fast_batching_reports_its_actual_difference(
    layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The reported levels are the difference between the images of its batch sizes."""
    request = SUITE["flux"].smallest_request
    folder = SUITE["flux"].least(tmp_path_factory.mktemp("flux"))
    flux = registry.load("flux", str(folder), "bfloat16", {})
    kept = MemoryCache()
    engine = Engine(flux, layout, 2, fast(2), executables=kept)
    alone = Engine(flux, layout, 2, executables=kept)
    try:
        await engine.readiness.warm_up([request])
        await engine.readiness.larger_ready([request])
        levels = await engine.readiness.levels(request)
        single = (await alone.generate(request, {})).pixels.astype(int)
        prepared = flux.prepare(request, {})
        shape = engine.programs.of(prepared)
        del shape.step_kinds[prepared.steps[0].program].programs[BatchLayout(1)]
        pair = (await engine.generate(request, {})).pixels
    finally:
        engine.close()
        alone.close()
    assert levels == np.abs(pair - single).max()
