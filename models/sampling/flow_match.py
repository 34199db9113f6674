"""Flow-matching Euler scheduler, with a shift that is static or depends on the number of tokens.

Source: Liu et al. 2022 (rectified flow), eq. 1; diffusers scheduling_flow_match_euler_discrete.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, Numbers, Plan, per_row
from models.sampling.flow_schedule import FlowMatchSchedule, img2img_start
from models.sampling.flow_step import denoised, euler
from models.sampling.options import check_options
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import check_request, first_step
from models.spec.option import OptionError


@dataclass(frozen=True)
class FlowMatchStep(Solver):
    """Solver of Euler's method for a velocity prediction."""

    METHOD: ClassVar[str] = "flow_match_euler"

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Take an Euler step along the predicted velocity to the next sigma."""
        sigma, sigma_next = (per_row(values[name], latents) for name in ("sigma", "sigma_next"))
        following = euler(latents, output, sigma, sigma_next)
        return SolverOutput(following, denoised(latents, output, sigma), history)


@dataclass(frozen=True)
class FlowMatchEuler(FlowMatchSchedule):
    """Equivalent of diffusers' FlowMatchEulerDiscreteScheduler."""

    name: ClassVar[str] = "flow_match_euler"
    solver: ClassVar[Solver] = FlowMatchStep()
    prediction_type: ClassVar[str] = "flow_prediction"
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset({"timesteps", "sigmas"})
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "time_shift_type": ("exponential", "linear")
    }

    def __post_init__(self) -> None:
        check_options(self)
        super().__post_init__()

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
        tokens: int | None = None,
        mu: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`; custom sigmas, one per step, are shifted.

        Args:
            tokens: number of packed latents, if the pipeline supplies its own sigmas, as Flux's
                does: evenly spaced ones, shifted by the tokens if the shift is dynamic.
            mu: dynamic shift computed by the pipeline; None: by the config.
        """
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        if tokens is None and self.use_dynamic_shifting:
            raise OptionError("use_dynamic_shifting", "this pipeline has no tokens to shift by")
        if tokens is None:
            table = self.finished(self.statically_shifted(self._even(steps, timesteps, sigmas)))
        else:
            table = self.sigmas(steps, tokens, sigmas, mu)
        train_steps = np.float32(self.num_train_timesteps)
        times = table[:-1] * train_steps
        if timesteps is not None:
            times = np.asarray(timesteps, np.float32)
        first = self._first(len(times), strength, of_pipeline=tokens is not None)
        return self.solver_plan(table, times, first)

    def solver_plan(self, table: Column, times: Column, first: int) -> Plan:
        """Build the plan of flow matching from step `first` on.

        Args:
            table: sigmas, and a final 0: [n + 1].
            times: of the network, [n].
        """
        now = table[first:-1]
        return self.flow_plan(times[first:], now, {"sigma": now, "sigma_next": table[first + 1 :]})

    @staticmethod
    def flow_plan(times: Column, now: Column, values: Mapping[str, Column]) -> Plan:
        """Build the plan of a flow's one-evaluation method, at the sigmas `now`."""
        return Plan(
            timesteps=times,
            input_scale=np.ones(len(now), np.float32),
            values=values,
            draws=np.zeros(len(now), bool),
            init_noise_sigma=1.0,
            clean_scale=np.append(1 - now, np.float32(1)),
            noise_scale=np.append(now, np.float32(0)),
        )

    @staticmethod
    def _first(steps: int, strength: float | None, *, of_pipeline: bool) -> int:
        """Return the first step of image to image over a flow.

        Pipelines with their own sigmas round the share of steps up.
        """
        if not of_pipeline or strength is None:
            return first_step(steps, strength)
        first = img2img_start(steps, strength)
        if first >= steps:
            raise OptionError("strength", f"leaves none of the {steps} steps; raise one of them")
        return first

    def _even(self, steps: int, timesteps: Numbers | None, sigmas: Numbers | None) -> Any:
        """Return evenly spaced sigmas before the shift; the lowest is already shifted once."""
        if sigmas is not None:
            return np.asarray(sigmas, np.float32)
        if timesteps is not None:
            return np.asarray(timesteps, np.float32) / np.float32(self.num_train_timesteps)
        ends = np.array([self.num_train_timesteps, 1], np.float32)
        high, low = self.statically_shifted(ends / np.float32(self.num_train_timesteps))
        spread = np.linspace(
            float(high) * self.num_train_timesteps, float(low) * self.num_train_timesteps, steps
        )
        return spread / self.num_train_timesteps
