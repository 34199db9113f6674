"""What the demo models can do: held-out prompts through the engine, with default settings.

The bars are a little under what the shipped weights reached; a change of engine, sampling or
weights that costs drawings fails here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

import models.demo
from models import registry
from models.demo.training.moving import held_out_prompts
from models.demo.world import checker, clip_checker
from models.demo.world.checker import Report
from models.demo.world.dataset import held_out_scenes
from workers.engine.engine import Engine
from workers.slice.mesh import one_device

HERE = Path(models.demo.__file__).parent
BFLOAT16_WITHIN = 0.02
SLOTS = 8


class Exam(NamedTuple):
    """What one demo model is asked."""

    prompts: Sequence[str]
    check: Callable[[np.ndarray, str], Report]
    bar: float
    """Least share of drawings with everything named right."""


def evenly(prompts: Sequence[str], count: int) -> list[str]:
    """So many of them, over the whole of their order."""
    assert len(prompts) >= count
    return [prompts[i * len(prompts) // count] for i in range(count)]


PICTURES = [scene.prompt for scene in held_out_scenes()[0]]
EXAMS = {
    # Measured: 193 of 200.
    "flux": Exam(evenly(PICTURES, 200), checker.check, bar=0.96),
    # Measured: 93 of these 100, 312 of all 339 held out (92.0 %); three less are another machine's
    # rounding.
    "sdxl": Exam(evenly(PICTURES, 100), checker.check, bar=0.90),
    # Measured: 91 of these 100; 224 of 246 (91.1 %) with two seeds for each of all 123 held out.
    "wan": Exam(held_out_prompts(100), clip_checker.check, bar=0.90),
}


async def right(name: str, dtype: str, every: int = 1) -> list[bool]:
    """Which drawings have everything right that their prompt names.

    Args:
        every: such prompt of the exam is asked.
    """
    exam = EXAMS[name]
    prompts = list(enumerate(exam.prompts))[::every]
    pipeline = registry.load(f"{name}-demo", str(HERE / name), dtype, {})
    engine = Engine(pipeline, one_device(jax.devices()[0]), SLOTS)
    wrong: Counter[str] = Counter()

    async def one(seed: int, prompt: str) -> bool:
        fields = {**pipeline.spec.defaults, "prompt": prompt, "seed": seed}
        drawing = await engine.generate(fields, {})
        report = exam.check(drawing.pixels, prompt)
        wrong.update(name for name, ok in report.criteria.items() if not ok)
        return report.correct

    try:
        results = await asyncio.gather(*(one(seed, prompt) for seed, prompt in prompts))
    finally:
        engine.close()
    print(f"{name} {dtype}: {sum(results)} of {len(results)} right; wrong: {dict(wrong)}")
    return results


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely() -> None:
    """Not here: as users compile, and hundreds of drawings take longer than their programs."""


@pytest.fixture(scope="module")
def of_flux() -> list[bool]:
    return asyncio.run(right("flux", "float32"))


def test_flux_reaches_the_bar(of_flux: list[bool]) -> None:
    assert np.mean(of_flux) >= EXAMS["flux"].bar


def test_flux_in_bfloat16_is_within_two_points(of_flux: list[bool]) -> None:
    """Of the same prompts and seeds; every second one, for this type is slow on processors."""
    results = asyncio.run(right("flux", "bfloat16", every=2))
    assert abs(sum(results) - sum(of_flux[::2])) <= BFLOAT16_WITHIN * len(results)


@pytest.mark.parametrize("name", ["sdxl", "wan"])
def test_the_others_reach_it(name: str) -> None:
    assert np.mean(asyncio.run(right(name, "float32"))) >= EXAMS[name].bar
