"""Heun's method: an Euler step, repeated with the mean of the derivatives at both its ends.

Source: Karras et al. 2022 (EDM), algorithm 1; diffusers scheduling_heun_discrete.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.sampling.base import Column
from models.sampling.prediction import UNCLIPPED
from models.sampling.solver import Solver
from models.sampling.spaced_schedule import SpacedSteps
from models.sampling.two_stage import Stages, TwoStageSchedule, TwoStageStep, two_stage_values

Values = Mapping[str, Column]
"""Values of `TwoStageStep`, by name."""


@dataclass(frozen=True, kw_only=True)
class Heun(TwoStageSchedule):
    """Equivalent of diffusers' HeunDiscreteScheduler."""

    beta_start: float = 0.00085
    beta_end: float = 0.012
    clip_sample: bool = False
    clip_sample_range: float = 1.0

    name: ClassVar[str] = "heun"
    solver: ClassVar[Solver] = TwoStageStep()

    def stages(self, steps: SpacedSteps) -> Stages:
        """Return Heun's second stages: at the next step's sigma."""
        limit = self.clip_sample_range if self.clip_sample else float(UNCLIPPED)
        first, second = heun_values(steps.sigmas, limit)
        return Stages(steps.timesteps[1:], steps.sigmas[1:-1], first, second)


def heun_values(sigmas: Column, limit: float = float(UNCLIPPED)) -> tuple[Values, Values]:
    """Return the solver values of Heun's first and second stages.

    Args:
        sigmas: [n + 1]; the last is 0.
        limit: magnitude to which the denoised latents are clipped.
    """
    lengths = np.diff(sigmas)
    second = two_stage_values(
        sigmas[1:-1], lengths[:-1], limit, second=1.0, weight=0.5, first_weight=0.5
    )
    return two_stage_values(sigmas[:-1], lengths, limit), second
