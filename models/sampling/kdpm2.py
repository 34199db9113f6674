"""DPM-Solver-2 in Karras' sigmas: a step along the derivative at its middle, and with noise.

Source: Lu et al. 2022 (DPM-Solver), algorithm 1; k-diffusion, sample_dpm_2 and
sample_dpm_2_ancestral; diffusers scheduling_k_dpm_2_discrete.py and its ancestral sibling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.sampling.base import Column
from models.sampling.euler_ancestral import ancestral_sigmas
from models.sampling.noisy import NoisySchedule
from models.sampling.sigmas import to_timesteps
from models.sampling.solver import Solver
from models.sampling.spaced_schedule import SpacedSteps
from models.sampling.two_stage import Stages, TwoStageSchedule, TwoStageStep, two_stage_values


@dataclass(frozen=True, kw_only=True)
class KDPM2(TwoStageSchedule):
    """Equivalent of diffusers' KDPM2DiscreteScheduler."""

    beta_start: float = 0.00085
    beta_end: float = 0.012

    name: ClassVar[str] = "dpm_2"
    solver: ClassVar[Solver] = TwoStageStep()
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **NoisySchedule.CHOICES,
        "prediction_type": ("epsilon", "v_prediction"),
    }

    def spaced_steps(self, steps: int) -> SpacedSteps:
        """Return timesteps and sigmas; Karras' timesteps are rounded, as in the reference."""
        spaced = super().spaced_steps(steps)
        if not self.use_karras_sigmas:
            return spaced
        return spaced._replace(timesteps=spaced.timesteps.round())

    def stages(self, steps: SpacedSteps) -> Stages:
        """Return the second stages of KDPM2: halfway to the next sigma, in its logarithm."""
        return middle_stages(steps, steps.sigmas[1:])


@dataclass(frozen=True, kw_only=True)
class KDPM2Ancestral(KDPM2):
    """Equivalent of diffusers' KDPM2AncestralDiscreteScheduler."""

    name: ClassVar[str] = "dpm_2_ancestral"

    def stages(self, steps: SpacedSteps) -> Stages:
        """Return the second stages: halfway, in the logarithm, to each step's sigma_down."""
        down, up = ancestral_sigmas(steps.sigmas)
        stages = middle_stages(steps, down)
        return stages._replace(
            second={**stages.second, "noise": up[:-1]},
            draws=(False, True),
        )


def middle_stages(steps: SpacedSteps, targets: Column) -> Stages:
    """Return second stages halfway to each step's target, and the values of `TwoStageStep`.

    Args:
        targets: [n], the last of which is 0.
    """
    now = steps.sigmas[:-1]
    middle = geometric_mean(now, targets)
    second = two_stage_values(middle[:-1], (targets - now)[:-1], second=1.0)
    return Stages(
        timesteps=to_timesteps(middle[:-1], steps.log_table),
        sigmas=middle[:-1],
        first=two_stage_values(now, middle - now),
        second=second,
    )


def geometric_mean(first: Column, second: Column) -> Column:
    """Return the geometric means of pairs of sigmas, float32."""
    mean: Column = np.sqrt(first.astype(np.float64) * second).astype(np.float32)
    return mean
