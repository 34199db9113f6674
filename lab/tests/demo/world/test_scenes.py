"""Properties of drawn scenes that the checker does not test."""

from __future__ import annotations

import numpy as np
import pytest

from lab.demo.world.scenes import SIZE_PX, draw
from lab.demo.world.vocabulary import COLOURS, SHAPES, Scene

AREAS = {"circle": np.pi / 4, "square": 1.0, "triangle": 0.5, "cross": 5 / 9}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_covers_its_share_of_its_box(shape: str) -> None:
    scene = Scene.parse(f"a large white {shape} in the middle of a black background")
    image = draw(scene, np.random.default_rng(0)).astype(np.float32)[..., 0]
    cover = (image - 20) / 225
    side = (cover > 0.5).any(0).sum()
    # One pixel of the box's side is 4 % of its area at these sizes.
    assert cover.sum() / side**2 == pytest.approx(AREAS[shape], rel=0.06)


def test_drawing_depends_only_on_its_generator() -> None:
    scene = Scene.parse("a red circle above a blue square on a yellow background")
    first, again, other = (draw(scene, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.shape == (SIZE_PX, SIZE_PX, 3)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_colours_are_solid() -> None:
    """All pixels except those at edges have exactly one of the two colors."""
    image = draw(Scene.parse("a red square on a blue background"), np.random.default_rng(3))
    named = [np.array(COLOURS[name]) for name in ("red", "blue")]
    solid = np.any([(image == colour).all(-1) for colour in named], axis=0)
    assert solid.mean() > 0.95
