"""Euler's method with ancestral noise: each step goes below the next sigma, and noise restores it.

Source: k-diffusion, get_ancestral_step and sample_euler_ancestral; diffusers
scheduling_euler_ancestral_discrete.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, Numbers, Plan, per_row, with_noise
from models.sampling.flow_step import euler
from models.sampling.noisy import NoisySchedule
from models.sampling.prediction import predicted
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import check_request, first_step


@dataclass(frozen=True)
class EulerAncestralStep(Solver):
    """Solver of Euler's method with ancestral noise."""

    METHOD: ClassVar[str] = "euler_ancestral"

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Take an Euler step to sigma_down, then add noise up to the next sigma."""
        denoised = predicted(latents, output, values)
        sigma, sigma_down = (per_row(values[name], latents) for name in ("sigma", "sigma_down"))
        down = euler(latents, (latents - denoised) / sigma, sigma, sigma_down)
        return SolverOutput(with_noise(down, noise, values["noise"]), denoised, history)


@dataclass(frozen=True, kw_only=True)
class EulerAncestral(NoisySchedule):
    """Equivalent of diffusers' EulerAncestralDiscreteScheduler."""

    name: ClassVar[str] = "euler_ancestral"
    solver: ClassVar[Solver] = EulerAncestralStep()
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset()
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **NoisySchedule.CHOICES,
        "prediction_type": ("epsilon", "v_prediction"),
    }

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`. Every step draws noise, even if unused."""
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        times = self.spaced_timesteps(steps)
        train = self.train_sigmas()
        table = np.append(np.interp(times, np.arange(len(train)), train), 0).astype(np.float32)
        down, up = ancestral_sigmas(table)
        return self.noisy_plan(times, table, first_step(steps, strength), sigma_down=down, noise=up)


def ancestral_sigmas(sigmas: Column) -> tuple[Column, Column]:
    """Return sigma_down and sigma_up of the steps between successive sigmas, [n + 1] → [n] each.

    Source: k-diffusion, get_ancestral_step.
    """
    now, after = sigmas[:-1], sigmas[1:]
    with np.errstate(invalid="ignore"):  # `Plan` reports the step without a root
        up = np.sqrt(after**2 * (now**2 - after**2) / now**2)
        return np.sqrt(after**2 - up**2), up
