"""What the demo model can do: held-out prompts through the engine, with default settings.

The bar is what the shipped weights reached; a change of engine, sampling or weights that costs
pictures fails here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jax
import pytest

import models.demo
from models import catalog
from models.demo.checker import check
from models.demo.dataset import held_out_scenes
from models.demo.vocabulary import Scene
from workers.engine import Engine
from workers.mesh import slices

FOLDER = Path(models.demo.__file__).parent / "flux"
PROMPTS = 200
BAR = 0.96
"""Least share of pictures with everything named right."""
BFLOAT16_WITHIN = 0.02
SLOTS = 8


def chosen() -> Sequence[Scene]:
    """200 of the held-out one-object scenes, evenly over all of them."""
    scenes, _ = held_out_scenes()
    assert len(scenes) >= PROMPTS
    return [scenes[i * len(scenes) // PROMPTS] for i in range(PROMPTS)]


async def right(dtype: str) -> int:
    """How many of the pictures have everything right that their prompt names."""
    pipeline = catalog.load("flux-demo", str(FOLDER), dtype, {})
    engine = Engine(pipeline, slices(jax.devices()[:1], 1)[0], SLOTS)
    wrong: Counter[str] = Counter()

    async def one(seed: int, scene: Scene) -> bool:
        fields = {**pipeline.spec.defaults, "prompt": scene.prompt, "seed": seed}
        picture = await engine.generate(fields, {})
        report = check(picture.pixels, scene.prompt)
        wrong.update(name for name, ok in report.criteria.items() if not ok)
        return report.correct

    try:
        results = await asyncio.gather(*(one(i, scene) for i, scene in enumerate(chosen())))
    finally:
        engine.close()
    print(f"{dtype}: {sum(results)} of {len(results)} right; wrong: {dict(wrong)}")
    return sum(results)


@pytest.fixture(scope="module")
def float32_score() -> int:
    return asyncio.run(right("float32"))


def test_float32_reaches_the_bar(float32_score: int) -> None:
    assert float32_score >= BAR * PROMPTS


def test_bfloat16_is_within_two_points(float32_score: int) -> None:
    score = asyncio.run(right("bfloat16"))
    assert abs(score - float32_score) <= BFLOAT16_WITHIN * PROMPTS
