"""Latent consistency models: each step predicts the denoised latents, then adds new noise.

Source: Luo et al. 2023 (LCM), algorithm 3 and section 4.3; diffusers scheduling_lcm.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from models.sampling.base import Numbers, Plan, per_row, with_noise
from models.sampling.distilled import DistilledSchedule
from models.sampling.prediction import (
    UNCLIPPED,
    clipped,
    of_mixed,
    predicted,
    threshold_values,
    thresholded,
)
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import check_request, first_step

_SIGMA_DATA = 0.5


@dataclass(frozen=True)
class LCMStep(Solver):
    """Solver of LCM: the consistency function, plus noise."""

    METHOD: ClassVar[str] = "lcm"
    thresholds: bool = False

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Take an LCM step: apply the consistency function, then add noise of the next timestep."""
        clean = predicted(latents, output, values)
        if self.thresholds:
            clean = thresholded(clean, values)
        clean = clipped(clean, values["limit"])
        names = ("boundary_out", "boundary_skip", "alpha_next")
        out, skip, alpha = (per_row(values[name], latents) for name in names)
        denoised = out * clean + skip * latents
        following = with_noise(alpha * denoised, noise, values["noise"])
        return SolverOutput(following, denoised, history)


@dataclass(frozen=True, kw_only=True)
class LCM(DistilledSchedule):
    """Equivalent of diffusers' LCMScheduler."""

    timestep_scaling: float = 10.0
    """Rate at which the boundary condition fades; larger values weight the latents less."""
    clip_sample: bool = False
    clip_sample_range: float = 1.0
    set_alpha_to_one: bool = True
    thresholding: bool = False
    dynamic_thresholding_ratio: float = 0.995
    sample_max_value: float = 1.0

    name: ClassVar[str] = "lcm"
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset({"timesteps"})

    @property
    def solver(self) -> Solver:
        """LCM solver; thresholding is part of its arithmetic."""
        return LCMStep(self.thresholding)

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`. The last step draws no noise."""
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        times = self.distilled_timesteps(steps, timesteps)
        times = times[first_step(len(times), strength) :]
        table = self.alphas_cumprod()[times]
        alpha, sigma = np.sqrt(table), np.sqrt(1 - table)
        return Plan(
            timesteps=times.astype(np.float32),
            input_scale=np.ones(len(times), np.float32),
            values=self._values(times, alpha, sigma),
            draws=np.arange(len(times)) < len(times) - 1,
            init_noise_sigma=1.0,
            clean_scale=np.append(alpha, np.float32(1)),
            noise_scale=np.append(sigma, np.float32(0)),
        )

    def _values(self, times: NDArray[np.int64], alpha: Any, sigma: Any) -> dict[str, Any]:
        scaled = times.astype(np.float32) * np.float32(self.timestep_scaling)
        total = scaled**2 + np.float32(_SIGMA_DATA**2)
        clips = self.clip_sample and not self.thresholding
        return {
            **(threshold_values(self, len(times)) if self.thresholding else {}),
            **of_mixed(self.prediction_type, alpha, sigma),
            "limit": np.full_like(alpha, self.clip_sample_range if clips else UNCLIPPED),
            "boundary_skip": np.float32(_SIGMA_DATA**2) / total,
            "boundary_out": scaled / np.sqrt(total),
            "alpha_next": np.append(alpha[1:], np.float32(1)),
            "noise": np.append(sigma[1:], np.float32(0)),
        }
