"""DDIM: step to the denoised latents and back along the predicted noise; eta adds new noise.

Source: Song et al. 2021 (DDIM), eq. 12 and 16; diffusers scheduling_ddim.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from models.sampling.base import Numbers, Plan, per_row, with_noise
from models.sampling.beta_schedule import NoiseSchedule
from models.sampling.prediction import (
    UNCLIPPED,
    clipped,
    noise_of_mixed,
    of_mixed,
    predicted,
    threshold_values,
    thresholded,
)
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import check_request, first_step, integer_timesteps


@dataclass(frozen=True)
class DDIMStep(Solver):
    """Solver of DDIM, with optional thresholding of the denoised latents."""

    METHOD: ClassVar[str] = "ddim"
    thresholds: bool = False

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Apply eq. 12 of DDIM: sum of denoised latents, predicted noise and new noise."""
        denoised = predicted(latents, output, values)
        if self.thresholds:
            denoised = thresholded(denoised, values)
        denoised = clipped(denoised, values["limit"])
        noise_predicted = predicted(latents, output, values, of="noise_")
        alpha, direction = (per_row(values[name], latents) for name in ("alpha", "direction"))
        following = alpha * denoised + direction * noise_predicted
        return SolverOutput(with_noise(following, noise, values["noise"]), denoised, history)


@dataclass(frozen=True, kw_only=True)
class DDIM(NoiseSchedule):
    """Equivalent of diffusers' DDIMScheduler."""

    timestep_spacing: str = "leading"
    clip_sample: bool = True
    clip_sample_range: float = 1.0
    set_alpha_to_one: bool = True
    """Whether the last step ends at clean latents, not at those of the first training timestep."""
    thresholding: bool = False
    dynamic_thresholding_ratio: float = 0.995
    sample_max_value: float = 1.0
    eta: float = 0.0
    """Option of requests, not of configs: 0 adds no noise, 1 as much as DDPM."""

    name: ClassVar[str] = "ddim"
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset()

    @property
    def stochastic(self) -> bool:
        """True if the scheduler's eta is positive, so that steps add noise."""
        return self.eta > 0

    @property
    def solver(self) -> Solver:
        """DDIM solver; thresholding is part of its arithmetic."""
        return DDIMStep(self.thresholding)

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`.

        With eta, each step draws noise, even if unused.
        """
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        times = integer_timesteps(self, steps)[first_step(steps, strength) :]
        table = self.alphas_cumprod()
        now = table[times]
        alpha, sigma = np.sqrt(now), np.sqrt(1 - now)
        return Plan(
            timesteps=times.astype(np.float32),
            input_scale=np.ones(len(times), np.float32),
            values=self._values(alpha, sigma, now, self._previous(times, steps, table)),
            draws=np.full(len(times), self.stochastic),
            init_noise_sigma=1.0,
            clean_scale=np.append(alpha, np.float32(1)),
            noise_scale=np.append(sigma, np.float32(0)),
        )

    def _previous(self, times: NDArray[np.int64], steps: int, table: Any) -> Any:
        """Return alphas_cumprod after each DDIM step: a fixed stride down, for any spacing."""
        previous = times - self.num_train_timesteps // steps
        final = np.float32(1) if self.set_alpha_to_one else table[0]
        return np.where(previous >= 0, table[np.maximum(previous, 0)], final)

    def _values(self, alpha: Any, sigma: Any, now: Any, after: Any) -> dict[str, Any]:
        """Compute all steps' solver values; `now` and `after` are alphas_cumprod around a step."""
        variance = (1 - after) / (1 - now) * (1 - now / after)  # eq. 16
        deviation = np.float32(self.eta) * np.sqrt(variance)
        clips = self.clip_sample and not self.thresholding
        return {
            **(threshold_values(self, len(now)) if self.thresholding else {}),
            **of_mixed(self.prediction_type, alpha, sigma),
            **noise_of_mixed(self.prediction_type, alpha, sigma),
            "limit": np.full_like(now, self.clip_sample_range if clips else UNCLIPPED),
            "alpha": np.sqrt(after),
            "direction": np.sqrt(np.maximum(1 - after - deviation**2, 0)),  # 0 may round below
            "noise": deviation,
        }
