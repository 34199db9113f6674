"""Passes of one image: warnings, compilation, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from models.interface.flow_steps import step_table
from models.interface.pipeline import PreparedRow, RequestWarning, Step
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from models.sampling.registry import from_config
from models.spec.request import RequestError
from tests.workers.observing import Observing
from tests.workers.polling import DEADLINE_S, until
from tests.workers.toy import ToyPipeline
from workers.engine.engine import Engine
from workers.engine.passes import ImagePass, position_after, with_warnings_of
from workers.programs.compilation import Compilation

CUT = RequestWarning("prompt", "CLIP reads 77 tokens")
CUT_LATER = RequestWarning("prompt", "the refiner's reads 77 tokens")
IDLE = RequestWarning("scheduler.lower_order_final", "has no effect")
IDLE_LATER = RequestWarning("scheduler.use_lu_lambdas", "has no effect")
IDLE_IN_BOTH = RequestWarning("scheduler.use_karras_sigmas", "has no effect")
HIRES = {
    "width": 64,
    "height": 32,
    "upscaler": "lanczos",
    "strength": 1.0,
    "num_inference_steps": 2,
}
TWICE: dict[str, Any] = {"width": 32, "height": 16, "hires": HIRES}
FIRST, SECOND = "width=32,height=16", "width=64,height=32"
"""Buckets of the passes."""


@pytest.mark.parametrize(
    ("config", "draft", "finished"),
    [
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}, (8, 3), (15, 6)),
        ({"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "trailing"}, (4, 1), (8, 2)),
        ({"_class_name": "DDIMScheduler", "timestep_spacing": "leading"}, (4, 1), (8, 3)),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}, (8, 3), (12, None)),
        ({"_class_name": "UniPCMultistepScheduler"}, (8, 3), (16, None)),
    ],
    ids=["flow", "euler", "ddim", "no such level", "history"],
)
def test_a_longer_schedule_continues_a_draft(
    config: dict[str, Any], draft: tuple[int, int], finished: tuple[int, int | None]
) -> None:
    scheduler = from_config(config)

    def steps_of(count: int) -> tuple[Step, ...]:
        plan = scheduler.plan(count)
        programs = [StepProgram("unet", solver=scheduler.solver)] * len(plan)
        return step_table(plan, programs, timestep=plan.timesteps)

    (count, done), (longer, position) = draft, finished
    steps = steps_of(count), done, steps_of(longer)
    if position is None:
        with pytest.raises(RequestError, match=r"depend on earlier|noise level after step 3 of 8"):
            position_after(*steps)
    else:
        assert position_after(*steps) == position


@pytest.fixture
async def engine(pipeline: ToyPipeline, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(pipeline, layout, 2)
    yield engine
    pipeline.gate.open()
    engine.close()


def one(*warnings: RequestWarning) -> ImagePass:
    return ImagePass({}, {}, PreparedRow("b", {}, (), 8, 8, 0, warnings))


def test_warnings_are_those_of_both_passes() -> None:
    """An option of the scheduler that changes only one pass is not idle."""
    first, second = one(CUT, IDLE, IDLE_IN_BOTH), one(CUT, CUT_LATER, IDLE_IN_BOTH, IDLE_LATER)
    assert with_warnings_of(first, second).warnings == (CUT, IDLE_IN_BOTH, CUT_LATER)
    assert with_warnings_of(first, None) is first.prepared


def test_field_read_by_one_pass_gives_no_warning() -> None:
    """A second pass without guidance does not use the first pass's negative prompt."""
    unguided = RequestWarning("negative_prompt", "has no effect: guidance_scale is at most 1")
    assert with_warnings_of(one(CUT), one(CUT, unguided)).warnings == (CUT,)
    assert with_warnings_of(one(unguided), one(unguided)).warnings == (unguided,)


async def test_second_pass_compiles_during_the_first_one(
    engine: Engine, pipeline: ToyPipeline
) -> None:
    """The first pass's steps are held until then. Both compilations are charged to the image."""
    charged: list[Compilation] = []
    fields = {**TWICE, "phase": "gated"}
    drawing = asyncio.create_task(
        engine.generate(fields, {}, observer=Observing(on_compile=charged.append))
    )
    await asyncio.to_thread(pipeline.gate.wait)
    await until(lambda: engine.costs.is_compiled(SECOND))
    assert not drawing.done() and len(charged) == 2
    assert engine.costs.expected_s(SECOND), "how long it took is known for the next"
    pipeline.gate.open()
    async with asyncio.timeout(DEADLINE_S):
        assert (await drawing).steps == 4 + 2
    assert len(charged) == 2


async def test_cancellation_in_the_first_pass_drops_the_second(
    engine: Engine, pipeline: ToyPipeline
) -> None:
    drawing = asyncio.create_task(engine.generate({**TWICE, "phase": "gated"}, {}))
    await asyncio.to_thread(pipeline.gate.wait)
    second = engine.programs.of(pipeline.prepare({**HIRES, "phase": "gated"}, {}))
    drawing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    assert not second.awaited


async def test_a_warm_up_with_hires_fix_compiles_both_passes(engine: Engine) -> None:
    await engine.readiness.warm_up([TWICE])
    assert {FIRST, SECOND} == set(engine.costs.warm)
