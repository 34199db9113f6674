"""Properties of drawn videos that the checker does not test."""

from __future__ import annotations

import numpy as np
import pytest

from lab.demo.world.motion import (
    DIRECTIONS,
    FRAMES,
    RADIUS_PX,
    SIZE_PX,
    TRAVEL_PX,
    VECTORS,
    Motion,
    draw,
)
from lab.demo.world.vocabulary import COLOURS, Thing


def motion(direction: str) -> Motion:
    return Motion(Thing("red", "square"), direction, "blue")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_object_travels_and_stays_inside(direction: str) -> None:
    for seed in range(20):
        clip = draw(motion(direction), np.random.default_rng(seed))
        assert clip.shape == (FRAMES, SIZE_PX, SIZE_PX, 3)
        red = (clip == COLOURS["red"]).all(-1)
        rim = np.concatenate([red[:, 0], red[:, -1], red[:, :, 0], red[:, :, -1]], axis=1)
        assert not rim.any()
        centres = np.array([np.argwhere(frame).mean(0)[::-1] for frame in red])
        displacement = centres[-1] - centres[0]
        # Rounding to whole pixels adds one at each end.
        assert TRAVEL_PX[0] - 1 <= displacement @ VECTORS[direction] <= TRAVEL_PX[1] + 1
        assert abs(displacement @ np.array(VECTORS[direction])[::-1]) < 1


def test_square_has_its_size() -> None:
    clip = draw(motion("up"), np.random.default_rng(0))
    sides = [(frame == COLOURS["red"]).all(-1).any(0).sum() for frame in clip]
    assert 2 * RADIUS_PX[0] - 2 <= min(sides) <= max(sides) <= 2 * RADIUS_PX[1]


def test_drawing_depends_only_on_its_generator() -> None:
    first, again, other = (draw(motion("left"), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
