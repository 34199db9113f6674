"""DPM-Solver and DPM-Solver++, multistep, of order 1 to 3, and their stochastic forms.

Source: Lu et al. 2022, DPM-Solver (algorithms 1 and 2) and DPM-Solver++ (algorithm 2, "2M");
diffusers scheduling_dpmsolver_multistep.py for the other orders, the schedule and the lower orders
at its ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, Numbers, Plan, per_row, with_noise
from models.sampling.dpm_terms import multistep_terms
from models.sampling.multistep import MultistepSchedule, MultistepStep, columns, half_log_snr
from models.sampling.sigmas import chosen_spacing, to_timesteps
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import check_request, first_step, spaced_between
from models.spec.option import OptionError

_FEW_STEPS = 15
"""Number of steps below which the last steps may have a lower order."""


@dataclass(frozen=True)
class DPMStep(MultistepStep):
    """Solver of DPM-Solver: a weighted sum of integrands, plus noise."""

    METHOD: ClassVar[str] = "dpm"

    def begin(self, latents: Float[Array, "*shape"]) -> History:
        """Return the initial history: zeros for the integrands of earlier steps, newest first."""
        return {f"previous_{i}": jnp.zeros_like(latents) for i in range(1, self.order)}

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Apply one DPM-Solver step: sum of latents, integrand, backward differences and noise."""
        denoised, current = self.integrand(latents, output, values)
        term = {name: per_row(value, latents) for name, value in values.items()}
        recent = [current, *(history[f"previous_{i}"] for i in range(1, self.order))]
        following = term["latents"] * latents + term["current"] * current
        for i in range(1, self.order):
            following = following + term[f"difference_{i}"] * (recent[i - 1] - recent[i])
        following = with_noise(following, noise, values["noise"])
        history_now = {f"previous_{i}": recent[i - 1] for i in range(1, self.order)}
        return SolverOutput(following, denoised, history_now)


@dataclass(frozen=True, kw_only=True)
class DPMSolver(MultistepSchedule):
    """Equivalent of diffusers' DPMSolverMultistepScheduler."""

    algorithm_type: str = "dpmsolver++"
    solver_type: str = "midpoint"
    """Estimate of the integrand's slope in steps of order 2."""
    euler_at_final: bool = False
    use_lu_lambdas: bool = False
    """Whether steps are evenly spaced in half-log-SNR."""
    lambda_min_clipped: float = -float("inf")
    """Lowest half-log-SNR; training timesteps below it are skipped."""
    variance_type: str | None = None
    """Field of DDPM's configs, without effect. Learned variances are not supported."""

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **MultistepSchedule.CHOICES,
        "algorithm_type": ("dpmsolver", "dpmsolver++", "sde-dpmsolver", "sde-dpmsolver++"),
        "solver_type": ("heun", "midpoint"),
        "variance_type": ("fixed_large", "fixed_large_log", "fixed_small", "fixed_small_log"),
    }
    READ_AS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "algorithm_type": {"deis": "dpmsolver++"},
        "solver_type": {"logrho": "midpoint", "bh1": "midpoint", "bh2": "midpoint"},
    }
    """Other schedulers' config values, and the reference's replacements."""
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset({"timesteps"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solves_for_noise and self.final_sigmas_type == "zero":
            raise OptionError(
                "final_sigmas_type",
                f"must be sigma_min with algorithm_type {self.algorithm_type}, not zero",
            )

    @property
    def solves_for_noise(self) -> bool:
        """True for DPM-Solver without ++, which integrates the noise."""
        return not self.algorithm_type.endswith("++")

    @property
    def stochastic(self) -> bool:
        """True if every step adds noise."""
        return self.algorithm_type.startswith("sde-")

    @property
    def name(self) -> str:
        """Name of the scheduler in requests, by order and algorithm."""
        return f"dpmpp_{3 if self.solver_order == 3 else 2}m_sde" if self.stochastic else "dpmpp_2m"

    @property
    def solver(self) -> Solver:
        """Solver by order, integrand and thresholding; other options are in the plan's values."""
        return DPMStep(*self.step_options)

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`."""
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        times, table = self._schedule(steps, timesteps)
        first = first_step(steps if timesteps is None else len(times), strength)
        orders = [(i, self._order(i, i - first, len(times))) for i in range(first, len(times))]
        terms = columns([self._terms(table, i, order) for i, order in orders])
        return self.multistep_plan(times, table, first, terms)

    def _order(self, step: int, done: int, steps: int) -> int:
        """Return a step's order: lower at the start (no history) and at the end (stability)."""
        few = self.lower_order_final and steps < _FEW_STEPS
        last = self.euler_at_final or few or self.final_sigmas_type == "zero"
        if step == steps - 1 and last:
            return 1
        if step == steps - 2 and few:
            return min(self.solver_order, done + 1, 2)
        return min(self.solver_order, done + 1)

    def _terms(self, sigmas: Column, step: int, order: int) -> dict[str, Any]:
        """Return the factors of one step of DPM-Solver."""
        nearby = sigmas[[step + 1, *(step - i for i in range(order))]]
        alpha, sigma = self.mixed(nearby)
        clock = half_log_snr(alpha, sigma)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            terms = multistep_terms(self.algorithm_type, self.solver_type, alpha, sigma, clock)
        zeros = {"noise": 0.0} | {f"difference_{i}": 0.0 for i in range(1, self.solver_order)}
        return {**zeros, **terms}

    def _schedule(self, steps: int, timesteps: Numbers | None) -> tuple[Any, Column]:
        """Return DPM-Solver's schedule: integer timesteps [n] and sigmas [n + 1]."""
        train = self.train_sigmas()
        if timesteps is not None:
            self._check_custom()
            times: Any = np.asarray(timesteps, np.int64)
            sigmas: Any = np.interp(times, np.arange(len(train)), train)
        elif chosen_spacing(self) or self.use_lu_lambdas:
            sigmas, times = self._respaced(train, steps)
        elif self.use_flow_sigmas:
            sigmas = self.flow_sigmas(steps)
            times = sigmas * self.num_train_timesteps
        else:
            times = self._spaced(steps)
            sigmas = np.interp(times, np.arange(len(train)), train)
        final = train[0] if self.final_sigmas_type == "sigma_min" else 0
        return times.astype(np.int64), np.append(sigmas, final).astype(np.float32)

    def _check_custom(self) -> None:
        if chosen_spacing(self) or self.use_lu_lambdas or self.use_flow_sigmas:
            raise OptionError(
                "timesteps", "exclude Karras, exponential, beta, Lu's and flow sigmas"
            )

    def _respaced(self, train: Column, steps: int) -> tuple[Any, Any]:
        """Return respaced sigmas and their timesteps.

        Karras' and Lu's are rounded except with cosine betas; the others are truncated.
        """
        log_table = np.log(train)
        if self.use_karras_sigmas or not self.use_lu_lambdas:
            sigmas = self.respaced(train, steps)
        else:
            sigmas = _lu(log_table, steps)
        times = to_timesteps(sigmas, log_table)
        rounds = self.use_karras_sigmas or self.use_lu_lambdas
        if rounds and self.beta_schedule != "squaredcos_cap_v2":
            times = times.round()
        return sigmas, times

    def _spaced(self, steps: int) -> Any:
        last = self.unclipped_timesteps(self.lambda_min_clipped)
        return spaced_between(
            self.timestep_spacing, self.num_train_timesteps, steps, self.steps_offset, last
        )


def _lu(log_table: Column, steps: int) -> Any:
    """Return sigmas at equally spaced lambda. Source: Lu et al. 2022 (DPM-Solver), section 3.2."""
    high, low = float(log_table[-1]), float(log_table[0])
    return np.exp(high + np.linspace(0, 1, steps) * (low - high))
