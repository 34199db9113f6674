"""Timesteps of each spacing: as many as steps, and none below the training's."""

from __future__ import annotations

import pytest

from models.sampling.timesteps import spaced, spaced_between


@pytest.mark.parametrize("steps", [1, 30, 61, 103, 121, 206, 1000])
def test_trailing_timesteps_are_as_many_as_steps(steps: int) -> None:
    """1000 / (1000 / 61) is above 61 in float64, so that the range has an entry more."""
    for times in (
        spaced("trailing", 1000, steps, 0),
        spaced_between("trailing", 1000, steps, 0),
    ):
        assert len(times) == steps and times.min() >= 0
        assert times[0] == 999
