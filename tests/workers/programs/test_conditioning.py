"""What steps are told is computed ahead of them, once, and belongs to its row alone."""

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
from tests.workers.toy import ToyPipeline
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.programs.bucket_programs import BucketPrograms, Phase
from workers.programs.conditioning import STEPS, computed, first, gather_steps, place


@pytest.fixture
async def engine(pipeline: ToyPipeline, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(pipeline, layout, slots=4)
    yield engine
    pipeline.gate.open()
    engine.close()


def echo(weights: Any, row: Any, values: Any) -> dict[str, np.ndarray]:
    """Conditions that tell what they were computed of."""
    return {"sigma": values["sigma"]}


def table(*phases: str) -> tuple[Step, ...]:
    return tuple(
        Step(StepProgram(phase), {"sigma": np.float32(at)}) for at, phase in enumerate(phases)
    )


def sigmas(steps: tuple[Step, ...], at: int) -> list[float]:
    return list(computed(echo, [], None, steps, at).tree["sigma"])


def test_every_step_finds_its_own() -> None:
    steps = table(*["a"] * (2 * STEPS + 3))
    for at in range(len(steps)):
        assert len(sigmas(steps, at)) == STEPS
        assert sigmas(steps, at)[place(at)] == at


def test_steps_of_another_phase_are_not_computed() -> None:
    steps = table("a", "a", "b", "a")
    assert sigmas(steps, 1)[:4] == [0, 1, 1, 3]
    assert sigmas(steps, 2)[:4] == [2, 2, 2, 2]


def test_each_row_of_a_batch_is_told_of_its_own_step() -> None:
    random = np.random.default_rng(0)
    trees = [{"x": random.standard_normal((STEPS, 2), np.float32)} for _ in range(3)]
    places = [STEPS - 1, 0, 5]
    found = jax.jit(gather_steps)(trees, np.array(places, np.int32))["x"]
    expected = [tree["x"][at] for tree, at in zip(trees, places, strict=True)]
    assert (found == np.stack(expected)).all()


def row(steps: int, done: int = 0) -> Row:
    programs = BucketPrograms("a")
    programs.phases[StepProgram("a")] = Phase(StepProgram("a"))
    return Row(programs, table(*["a"] * steps), None, lambda row: None, lambda *_: None, done=done)


def test_a_row_computes_them_once_in_so_many_steps_and_drops_them_at_the_end() -> None:
    calls: list[float] = []

    def program(weights: Any, state: Any, values: Any) -> dict[str, np.ndarray]:
        calls.append(values["sigma"][0])
        return {"sigma": values["sigma"]}

    one = row(STEPS + 2)
    for ticket in range(STEPS + 2):
        told = one.load_conditions(program, [])
        assert told.tree["sigma"][place(one.sent)] == one.sent
        one.send(None, ticket)
    assert calls == [0, STEPS]
    assert one.conditions is None


def test_they_are_computed_again_after_what_went_wrong() -> None:
    one = row(3)
    failed = one.load_conditions(echo, [])
    one.send(None, 1)
    one.rewind()
    assert one.load_conditions(echo, []) is not failed


def test_a_row_that_goes_on_midway_has_the_same_as_from_the_beginning() -> None:
    """The same program with the same columns: equal to the last bit."""
    whole, rest = row(STEPS), row(STEPS, done=7)
    told = [one.load_conditions(echo, []) for one in (whole, rest)]
    assert told[0].first == told[1].first == first(7)
    assert (told[0].tree["sigma"] == told[1].tree["sigma"]).all()


async def test_company_of_any_length_is_the_reference(
    engine: Engine, pipeline: ToyPipeline
) -> None:
    """Rows at different places of different chunks, in one batch and with other phases."""
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
    seen: asyncio.Queue[Row] = asyncio.Queue()
    request = {"phase": "told", "num_inference_steps": 500}
    task = asyncio.create_task(engine.generate(request, {}, seen.put_nowait))
    row = await seen.get()
    conditions = row.conditions
    assert conditions is not None
    leaf = weakref.ref(conditions.tree["hint"])
    del conditions
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await make(engine)  # the loop has gone on
    gc.collect()
    assert row.conditions is None and leaf() is None


async def test_a_family_without_them_computes_none(engine: Engine, pipeline: ToyPipeline) -> None:
    programs = await engine.try_out({"seed": 1}, steps=1)
    assert programs.phases[StepProgram("plain")].conditions.result() is None
    programs = await engine.try_out({"seed": 1, "phase": "told"}, steps=1)
    assert programs.phases[StepProgram("told")].conditions.result() is not None
