"""Euler's method on the probability flow ODE, in Karras' sigmas.

Source: Karras et al. 2022 (EDM), algorithm 2 without churn; diffusers scheduling_euler_discrete.py
for the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, Numbers, Plan, per_row
from models.sampling.beta_schedule import linspace
from models.sampling.flow_step import euler
from models.sampling.noisy import NoisySchedule
from models.sampling.prediction import predicted
from models.sampling.sigmas import chosen_spacing, to_timesteps
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import check_request, first_step
from models.spec.option import OptionError


@dataclass(frozen=True)
class EulerStep(Solver):
    """Solver of Euler's method, from the denoised latents."""

    METHOD: ClassVar[str] = "euler"

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Take an Euler step along the line towards the denoised latents, to the next sigma."""
        denoised = predicted(latents, output, values)
        sigma, sigma_next = (per_row(values[name], latents) for name in ("sigma", "sigma_next"))
        return SolverOutput(
            euler(latents, (latents - denoised) / sigma, sigma, sigma_next), denoised, history
        )


@dataclass(frozen=True, kw_only=True)
class Euler(NoisySchedule):
    """Equivalent of diffusers' EulerDiscreteScheduler."""

    interpolation_type: str = "linear"
    """Interpolation of sigmas between training timesteps."""
    use_karras_sigmas: bool | None = False
    use_exponential_sigmas: bool | None = False
    use_beta_sigmas: bool | None = False
    sigma_min: float | None = None
    """Lowest sigma of the three spacings above, instead of the schedule's own."""
    sigma_max: float | None = None
    timestep_type: str = "discrete"
    """Continuous: a v-prediction network receives log(sigma) / 4 instead of a timestep."""
    final_sigmas_type: str = "zero"

    name: ClassVar[str] = "euler"
    solver: ClassVar[Solver] = EulerStep()
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset({"timesteps", "sigmas"})
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **NoisySchedule.CHOICES,
        "interpolation_type": ("linear", "log_linear"),
        "timestep_type": ("continuous", "discrete"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen_spacing(self)

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`.

        Custom sigmas include the last step's target (usually 0).
        """
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        times, table = self._spaced(steps, timesteps) if sigmas is None else self._of_sigmas(sigmas)
        if self._continuous:
            times = np.float32(0.25) * np.log(table[:-1])
        custom = timesteps is not None or sigmas is not None
        first = first_step(len(times) if custom else steps, strength)
        table = table[: len(times) + 1]
        return self.noisy_plan(times, table, first, sigma_next=table[1:])

    @property
    def _continuous(self) -> bool:
        return self.timestep_type == "continuous" and self.prediction_type == "v_prediction"

    def _of_sigmas(self, sigmas: Numbers) -> tuple[Column, Column]:
        table = np.asarray(sigmas, np.float32)
        if len(table) < 2:
            raise OptionError("sigmas", "must hold one a step and a last one, usually 0")
        times = to_timesteps(table[:-1], np.log(self.train_sigmas()))
        return times.astype(np.float32), table

    def _spaced(self, steps: int, timesteps: Numbers | None) -> tuple[Column, Column]:
        """Return Euler's timesteps [n] and sigmas [n + 1], or one sigma more with log_linear."""
        respace = chosen_spacing(self)
        if timesteps is not None and (respace or self._continuous):
            raise OptionError(
                "timesteps", "exclude sigmas of another spacing and continuous timesteps"
            )
        times = (
            self.spaced_timesteps(steps) if timesteps is None else np.asarray(timesteps, np.float32)
        )
        train = self.train_sigmas()
        sigmas = self._interpolated(times, train, steps if timesteps is None else len(times))
        if respace:
            ends = (self.sigma_max, sigmas[0]), (self.sigma_min, sigmas[-1])
            high, low = (float(default if given is None else given) for given, default in ends)
            sigmas = respace(high, low, steps)
            times = to_timesteps(sigmas, np.log(train))
        final = train[0] if self.final_sigmas_type == "sigma_min" else 0
        return times.astype(np.float32), np.append(sigmas, final).astype(np.float32)

    def _interpolated(self, times: Column, train: Column, steps: int) -> Column:
        """Interpolate training sigmas at these timesteps; log_linear adds the last target."""
        if self.interpolation_type == "linear":
            return np.interp(times, np.arange(len(train)), train)
        return np.exp(linspace(float(np.log(train[-1])), float(np.log(train[0])), steps + 1))
