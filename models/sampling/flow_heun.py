"""Heun's method for a flow's velocity, with a static shift.

Source: Karras et al. 2022 (EDM), algorithm 1; diffusers scheduling_flow_match_heun_discrete.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.sampling.base import Column, Numbers, Plan
from models.sampling.heun import heun_values
from models.sampling.options import check_options
from models.sampling.prediction import of_noisy
from models.sampling.solver import Solver
from models.sampling.timesteps import check_request, first_step
from models.sampling.two_stage import TWO_A_STEP, TwoStageStep, interleaved
from models.spec.evaluations import Evaluations


@dataclass(frozen=True)
class FlowMatchHeun:
    """Equivalent of diffusers' FlowMatchHeunDiscreteScheduler."""

    num_train_timesteps: int = 1000
    shift: float = 1.0

    name: ClassVar[str] = "flow_match_heun"
    solver: ClassVar[Solver] = TwoStageStep()
    prediction_type: ClassVar[str] = "flow_prediction"
    EVALUATIONS: ClassVar[Evaluations] = TWO_A_STEP
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_options(self)

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`, one entry per evaluation.

        Image to image skips steps.
        """
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        return flow_heun_plan(
            self._sigmas(steps), self.num_train_timesteps, first_step(steps, strength)
        )

    def _sigmas(self, steps: int) -> Column:
        """Return Heun's sigmas for a flow and a final 0; the ends are shifted twice, as there."""
        ends = np.array([self.num_train_timesteps, 1], np.float32) / self.num_train_timesteps
        high, low = (float(end) * self.num_train_timesteps for end in self._shifted(ends))
        even = np.linspace(high, low, steps) / self.num_train_timesteps
        return np.append(self._shifted(even), 0).astype(np.float32)

    def _shifted(self, sigmas: Column) -> Column:
        return self.shift * sigmas / (1 + (self.shift - 1) * sigmas)


def flow_heun_plan(sigmas: Column, train_timesteps: int, first: int) -> Plan:
    """Build the plan of Heun's method over a flow's sigmas.

    Args:
        sigmas: [n + 1], float32; the last is 0.
        first: first step of image to image.
    """
    begin, now = 2 * first, interleaved(sigmas[:-1], sigmas[1:-1])
    stage, second = heun_values(sigmas)
    values = {name: interleaved(of, second[name])[begin:] for name, of in stage.items()}
    now = now[begin:]
    return Plan(
        timesteps=now * np.float32(train_timesteps),
        input_scale=np.ones(len(now), np.float32),
        values={**of_noisy("epsilon", now), **values},
        draws=np.zeros(len(now), bool),
        init_noise_sigma=1.0,
        clean_scale=np.append(1 - now, np.float32(1)),
        noise_scale=np.append(now, np.float32(0)),
    )
