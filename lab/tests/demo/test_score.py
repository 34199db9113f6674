"""Scores of the demo models: held-out prompts through the engine with default settings.

The bars are slightly below the shipped weights' scores, so regressions of engine, sampling or
weights fail.
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
from lab.demo.training.moving import held_out_prompts
from lab.demo.world import checker, clip_checker
from lab.demo.world.checker import Report
from lab.demo.world.scenes import held_out_scenes
from models import registry
from workers.engine.engine import Engine
from workers.slice.mesh import one_device

HERE = Path(models.demo.__file__).parent
BFLOAT16_WITHIN = 0.02
SLOTS = 8


class Exam(NamedTuple):
    """Prompts, checker and bar of a demo model."""

    prompts: Sequence[str]
    check: Callable[[np.ndarray, str], Report]
    bar: float
    """Minimum share of images whose every named property is correct."""


def evenly(prompts: Sequence[str], count: int) -> list[str]:
    """Select `count` prompts at equal distances."""
    assert len(prompts) >= count
    return [prompts[i * len(prompts) // count] for i in range(count)]


PICTURES = [scene.prompt for scene in held_out_scenes()[0]]
EXAMS = {
    # Measured: 193 of 200.
    "flux": Exam(evenly(PICTURES, 200), checker.check, bar=0.96),
    # Measured: 93 of these 100, 312 of all 339 held out (92.0 %). Another machine's rounding costs
    # three.
    "sdxl": Exam(evenly(PICTURES, 100), checker.check, bar=0.90),
    # Measured: 91 of these 100, and 224 of 246 (91.1 %) with two seeds for all 123 held out.
    "wan": Exam(held_out_prompts(100), clip_checker.check, bar=0.90),
}


async def right(name: str, dtype: str, every: int = 1) -> list[bool]:
    """Return, per prompt, whether the image shows everything that the prompt names.

    Args:
        every: use every n-th prompt of the exam.
    """
    exam = EXAMS[name]
    prompts = list(enumerate(exam.prompts))[::every]
    pipeline = registry.load(f"{name}-demo", str(HERE / name), dtype, {})
    engine = Engine(pipeline, one_device(jax.devices()[0]), SLOTS)
    failures: Counter[str] = Counter()

    async def is_correct(seed: int, prompt: str) -> bool:
        fields = {**pipeline.spec.defaults, "prompt": prompt, "seed": seed}
        output = await engine.generate(fields, {})
        report = exam.check(output.pixels, prompt)
        failures.update(name for name, ok in report.criteria.items() if not ok)
        return report.correct

    try:
        results = await asyncio.gather(*(is_correct(seed, prompt) for seed, prompt in prompts))
    finally:
        engine.close()
    print(f"{name} {dtype}: {sum(results)} of {len(results)} right; wrong: {dict(failures)}")
    return results


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely() -> None:
    """Override the fixture: compile as in production, because generating takes longer than
    compiling."""


@pytest.fixture(scope="module")
def of_flux() -> list[bool]:
    return asyncio.run(right("flux", "float32"))


def test_flux_reaches_the_bar(of_flux: list[bool]) -> None:
    assert np.mean(of_flux) >= EXAMS["flux"].bar


def test_flux_in_bfloat16_is_within_two_points(of_flux: list[bool]) -> None:
    """Compares the same prompts and seeds; only every second, because bfloat16 is slow on CPUs."""
    results = asyncio.run(right("flux", "bfloat16", every=2))
    assert abs(sum(results) - sum(of_flux[::2])) <= BFLOAT16_WITHIN * len(results)


@pytest.mark.parametrize("name", ["sdxl", "wan"])
def test_the_others_reach_it(name: str) -> None:
    assert np.mean(asyncio.run(right(name, "float32"))) >= EXAMS[name].bar
