"""Trajectory consistency distillation (TCD): step along the trajectory, then add noise back.

Source: Zheng et al. 2024 (TCD), algorithm 4; diffusers scheduling_tcd.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from models.sampling.base import Numbers, Plan
from models.sampling.ddim import DDIMStep
from models.sampling.distilled import DistilledSchedule
from models.sampling.prediction import UNCLIPPED, noise_of_mixed, of_mixed
from models.sampling.solver import Solver
from models.sampling.timesteps import check_request, first_step


@dataclass(frozen=True, kw_only=True)
class TCD(DistilledSchedule):
    """Equivalent of diffusers' TCDScheduler: DDIM's step, to a point below the next timestep."""

    eta: float = 0.0
    """Option of requests, not of configs: the paper's gamma. 0 adds no noise, as in diffusers'
    pipelines by default; 1 steps to timestep 0 and back."""

    name: ClassVar[str] = "tcd"
    solver: ClassVar[Solver] = DDIMStep()
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset({"timesteps"})

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
        table = self.alphas_cumprod()
        alpha, sigma = np.sqrt(table[times]), np.sqrt(1 - table[times])
        return Plan(
            timesteps=times.astype(np.float32),
            input_scale=np.ones(len(times), np.float32),
            values={
                **of_mixed(self.prediction_type, alpha, sigma),
                **noise_of_mixed(self.prediction_type, alpha, sigma),
                **self._values(np.append(times[1:], 0), table),
            },
            draws=(np.arange(len(times)) < len(times) - 1) & (self.eta > 0),
            init_noise_sigma=1.0,
            clean_scale=np.append(alpha, np.float32(1)),
            noise_scale=np.append(sigma, np.float32(0)),
        )

    def _values(self, following: NDArray[np.int64], table: Any) -> dict[str, Any]:
        """Return TCD's factors of each step to the timestep `following`, by way of a lower one."""
        lower = np.floor(np.float32(1 - self.eta) * following.astype(np.float32)).astype(np.int64)
        back = table[following] / table[lower]
        return {
            "limit": np.full(len(following), UNCLIPPED, np.float32),
            "alpha": np.sqrt(back) * np.sqrt(table[lower]),
            "direction": np.sqrt(back) * np.sqrt(1 - table[lower]),
            "noise": np.sqrt(1 - back),
        }
