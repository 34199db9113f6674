"""Modulations of steps: computed in advance, once, for one row."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import jax
import numpy as np
import pytest

from models.interface.pipeline import Step
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from tests.workers.engine.test_engine import assert_is_reference, make
from tests.workers.observing import Observing
from tests.workers.toy import ToyPipeline
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.programs.bucket_programs import BucketPrograms, StepKind
from workers.programs.precomputed_modulations import (
    STEPS,
    gather_steps,
    group_start,
    index_in_group,
    precompute,
)


@pytest.fixture
async def engine(pipeline: ToyPipeline, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(pipeline, layout, slots=4)
    yield engine
    pipeline.gate.open()
    engine.close()


def echo(weights: Any, row: Any, values: Any) -> dict[str, np.ndarray]:
    """Return modulations that contain their inputs."""
    return {"sigma": values["sigma"]}


def table(*phases: str) -> tuple[Step, ...]:
    return tuple(
        Step(StepProgram(phase), {"sigma": np.float32(at)}) for at, phase in enumerate(phases)
    )


def sigmas(steps: tuple[Step, ...], at: int) -> list[float]:
    return list(precompute(echo, [], None, steps, at).tree["sigma"])


def test_each_step_finds_its_modulations() -> None:
    steps = table(*["a"] * (2 * STEPS + 3))
    for at in range(len(steps)):
        assert len(sigmas(steps, at)) == STEPS
        assert sigmas(steps, at)[index_in_group(at)] == at


def test_steps_of_another_phase_are_not_computed() -> None:
    steps = table("a", "a", "b", "a")
    assert sigmas(steps, 1)[:4] == [0, 1, 1, 3]
    assert sigmas(steps, 2)[:4] == [2, 2, 2, 2]


def test_each_row_gets_the_modulations_of_its_step() -> None:
    random = np.random.default_rng(0)
    trees = [{"x": random.standard_normal((STEPS, 2), np.float32)} for _ in range(3)]
    places = [STEPS - 1, 0, 5]
    gathered = jax.jit(gather_steps)(trees, np.array(places, np.int32))["x"]
    expected = [tree["x"][at] for tree, at in zip(trees, places, strict=True)]
    assert (gathered == np.stack(expected)).all()


def row(steps: int, done: int = 0) -> Row:
    programs = BucketPrograms("a")
    programs.step_kinds[StepProgram("a")] = StepKind(StepProgram("a"))
    return Row(programs, table(*["a"] * steps), None, lambda row: None, lambda *_: None, done=done)


def test_row_computes_modulations_per_group_and_frees_them() -> None:
    calls: list[float] = []

    def program(weights: Any, state: Any, values: Any) -> dict[str, np.ndarray]:
        calls.append(values["sigma"][0])
        return {"sigma": values["sigma"]}

    image_row = row(STEPS + 2)
    for ticket in range(STEPS + 2):
        modulations = image_row.load_modulations(program, [])
        assert modulations.tree["sigma"][index_in_group(image_row.sent)] == image_row.sent
        image_row.send(None, ticket)
    assert calls == [0, STEPS]
    assert image_row.modulations is None


def test_modulations_are_recomputed_after_a_failure() -> None:
    image_row = row(3)
    failed = image_row.load_modulations(echo, [])
    image_row.send(None, 1)
    image_row.rewind()
    assert image_row.load_modulations(echo, []) is not failed


def test_resumed_row_has_the_same_modulations() -> None:
    """The same program gets the same columns: equal to the last bit."""
    complete, resumed = row(STEPS), row(STEPS, done=7)
    modulations = [image_row.load_modulations(echo, []) for image_row in (complete, resumed)]
    assert modulations[0].group_start == modulations[1].group_start == group_start(7)
    assert (modulations[0].tree["sigma"] == modulations[1].tree["sigma"]).all()


async def test_batched_rows_match_the_reference(engine: Engine, pipeline: ToyPipeline) -> None:
    """Rows at different places of different chunks share a batch, also with other phases."""
    requests: list[dict[str, Any]] = [
        {"seed": 1, "phase": "told", "num_inference_steps": 2 * STEPS + 1},
        {"seed": 2, "phase": "told", "num_inference_steps": 3, "guidance_scale": 5.0},
        {"seed": 3, "phase": "told", "num_inference_steps": STEPS, "prompt": "a hat"},
        {"seed": 4, "phase": "told", "second_phase": "plain", "num_inference_steps": 9},
        {"seed": 5, "num_inference_steps": STEPS},
    ]
    pictures = await asyncio.gather(*(make(engine, **request) for request in requests))
    for picture, request in zip(pictures, requests, strict=True):
        assert_is_reference(picture, pipeline, **request)


async def test_a_canceled_row_frees_them(engine: Engine, pipeline: ToyPipeline) -> None:
    rows: asyncio.Queue[Row] = asyncio.Queue()
    request = {"phase": "told", "num_inference_steps": 500}
    task = asyncio.create_task(engine.generate(request, {}, Observing(rows.put_nowait)))
    row = await rows.get()
    modulations = row.modulations
    assert modulations is not None
    leaf = weakref.ref(modulations.tree["hint"])
    del modulations
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await make(engine)  # by now the loop has run further steps
    gc.collect()
    assert row.modulations is None and leaf() is None


async def test_family_without_modulations_precomputes_none(
    engine: Engine, pipeline: ToyPipeline
) -> None:
    programs = await engine.readiness.try_out({"seed": 1}, steps=1)
    assert programs.step_kinds[StepProgram("plain")].modulations.result() is None
    programs = await engine.readiness.try_out({"seed": 1, "phase": "told"}, steps=1)
    assert programs.step_kinds[StepProgram("told")].modulations.result() is not None
