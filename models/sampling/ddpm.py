"""DDPM: sample the posterior of the next latents, given the denoised ones.

Source: Ho et al. 2020 (DDPM), eq. 7 and algorithm 2; diffusers scheduling_ddpm.py.
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
    of_mixed,
    predicted,
    threshold_values,
    thresholded,
)
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import (
    check_request,
    first_step,
    integer_timesteps,
    listed_timesteps,
)

_MIN_VARIANCE = np.float32(1e-20)


@dataclass(frozen=True)
class DDPMStep(Solver):
    """Solver of DDPM, with optional thresholding of the denoised latents."""

    METHOD: ClassVar[str] = "ddpm"
    thresholds: bool = False

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Apply eq. 7 of DDPM: weighted sum of denoised and current latents, and noise."""
        denoised = predicted(latents, output, values)
        if self.thresholds:
            denoised = thresholded(denoised, values)
        denoised = clipped(denoised, values["limit"])
        clean, current = (per_row(values[name], latents) for name in ("clean", "current"))
        following = with_noise(clean * denoised + current * latents, noise, values["noise"])
        return SolverOutput(following, denoised, history)


@dataclass(frozen=True, kw_only=True)
class DDPM(NoiseSchedule):
    """Equivalent of diffusers' DDPMScheduler, without learned variances."""

    timestep_spacing: str = "leading"
    variance_type: str = "fixed_small"
    clip_sample: bool = True
    clip_sample_range: float = 1.0
    thresholding: bool = False
    dynamic_thresholding_ratio: float = 0.995
    sample_max_value: float = 1.0

    name: ClassVar[str] = "ddpm"
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset({"timesteps"})
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **NoiseSchedule.CHOICES,
        "variance_type": ("fixed_large", "fixed_small", "fixed_small_log"),
    }

    @property
    def solver(self) -> Solver:
        """DDPM solver; thresholding is part of its arithmetic."""
        return DDPMStep(self.thresholding)

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`. A step at timestep 0 draws no noise."""
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        if timesteps is None:
            times = integer_timesteps(self, steps)
        else:
            times = listed_timesteps(timesteps, self.num_train_timesteps)
        alphas_cumprod = self.alphas_cumprod()[times]
        first = first_step(steps if timesteps is None else len(times), strength)
        now, after = alphas_cumprod[first:], np.append(alphas_cumprod[1:], np.float32(1))[first:]
        return self._plan(times[first:], now, after)

    def _plan(self, times: NDArray[np.int64], now: Any, after: Any) -> Plan:
        """Build the plan of DDPM; `now` and `after` are alphas_cumprod around a step."""
        alpha, sigma = np.sqrt(now), np.sqrt(1 - now)
        return Plan(
            timesteps=times.astype(np.float32),
            input_scale=np.ones(len(times), np.float32),
            values={
                **of_mixed(self.prediction_type, alpha, sigma),
                **self._values(now, after),
                "noise": self._deviation(now, after) * (times > 0),
            },
            draws=times > 0,
            init_noise_sigma=1.0,
            clean_scale=np.append(alpha, np.float32(1)),
            noise_scale=np.append(sigma, np.float32(0)),
        )

    def _values(self, now: Any, after: Any) -> dict[str, Any]:
        kept = now / after
        clips = self.clip_sample and not self.thresholding
        return {
            **(threshold_values(self, len(now)) if self.thresholding else {}),
            "limit": np.full_like(now, self.clip_sample_range if clips else UNCLIPPED),
            "clean": np.sqrt(after) * (1 - kept) / (1 - now),
            "current": np.sqrt(kept) * (1 - after) / (1 - now),
        }

    def _deviation(self, now: Any, after: Any) -> Any:
        """Return the standard deviation of DDPM's added noise: posterior or forward step."""
        beta = 1 - now / after
        if self.variance_type == "fixed_large":
            return np.sqrt(beta)
        return np.sqrt(np.maximum((1 - after) / (1 - now) * beta, _MIN_VARIANCE))
