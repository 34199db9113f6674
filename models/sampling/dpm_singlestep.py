"""DPM-Solver and DPM-Solver++, singlestep: groups of steps that begin at the same latents.

A group of k steps evaluates the network at k sigmas. Each of its steps, of order 1 to k, starts
again at the group's first latents, with one evaluation more.

Source: Lu et al. 2022, DPM-Solver (algorithms 1 and 2) and DPM-Solver++ (algorithm 1, "2S");
diffusers scheduling_dpmsolver_singlestep.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, Numbers, Plan, per_row, with_noise
from models.sampling.dpm_terms import singlestep_terms
from models.sampling.multistep import MultistepSchedule, MultistepStep, columns, half_log_snr
from models.sampling.sigmas import chosen_spacing, to_timesteps
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import check_request, first_step, spaced_between
from models.spec.option import OptionError


@dataclass(frozen=True)
class SinglestepStep(MultistepStep):
    """Solver of singlestep methods: the group's first latents, its integrands, and noise."""

    METHOD: ClassVar[str] = "dpm_singlestep"

    def begin(self, latents: Float[Array, "*shape"]) -> History:
        """Return the initial history: zeros for a group's first latents and earlier integrands."""
        names = ("start", *(f"previous_{i}" for i in range(1, self.order)))
        return {name: jnp.zeros_like(latents) for name in names}

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Apply one singlestep step: sum of first latents, integrands, differences and noise."""
        denoised, current = self.integrand(latents, output, values)
        term = {name: per_row(value, latents) for name, value in values.items()}
        start = jnp.where(term["done"] == 0, latents, history["start"])
        recent = [current, *(history[f"previous_{i}"] for i in range(1, self.order))]
        oldest = jnp.zeros_like(latents)
        for i, integrand in enumerate(recent):
            oldest = jnp.where(term["done"] == i, integrand, oldest)
        following = term["latents"] * start + term["current"] * oldest
        for i, integrand in enumerate(recent[:-1]):
            following = following + term[f"weight_{i}"] * (integrand - oldest)
        following = with_noise(following, noise, values["noise"])
        history_now = {f"previous_{i}": recent[i - 1] for i in range(1, self.order)}
        return SolverOutput(following, denoised, {"start": start, **history_now})


@dataclass(frozen=True, kw_only=True)
class DPMSolverSinglestep(MultistepSchedule):
    """Equivalent of diffusers' DPMSolverSinglestepScheduler, always with linspace spacing."""

    algorithm_type: str = "dpmsolver++"
    solver_type: str = "midpoint"
    """Estimate of the integrand's slope."""
    lower_order_final: bool = False
    lambda_min_clipped: float = -float("inf")
    """Lowest half-log-SNR; training timesteps below it are skipped."""
    variance_type: str | None = None
    """Field of DDPM's configs, without effect. Learned variances are not supported."""

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **MultistepSchedule.CHOICES,
        "algorithm_type": ("dpmsolver", "dpmsolver++", "sde-dpmsolver++"),
        "solver_type": ("heun", "midpoint"),
        "variance_type": ("fixed_large", "fixed_large_log", "fixed_small", "fixed_small_log"),
    }
    READ_AS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "algorithm_type": {"deis": "dpmsolver++"},
        "solver_type": {"logrho": "midpoint", "bh1": "midpoint", "bh2": "midpoint"},
    }
    """Other schedulers' config values, and the reference's replacements."""
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solves_for_noise and self.final_sigmas_type == "zero":
            raise OptionError(
                "final_sigmas_type",
                f"must be sigma_min with algorithm_type {self.algorithm_type}, not zero",
            )
        if self.solves_for_noise and self.thresholding:
            raise OptionError("thresholding", "needs an algorithm_type that ends with ++")

    @property
    def solves_for_noise(self) -> bool:
        """True for the method without ++, which integrates the noise."""
        return not self.algorithm_type.endswith("++")

    @property
    def stochastic(self) -> bool:
        """True if every step adds noise."""
        return self.algorithm_type.startswith("sde-")

    @property
    def name(self) -> str:
        """Name of the scheduler in requests, also for other orders."""
        return "dpmpp_2s"

    @property
    def solver(self) -> Solver:
        """Solver by order, integrand and thresholding; other options are in the plan's values."""
        return SinglestepStep(*self.step_options)

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`.

        There is one evaluation a step, in groups of `solver_order`.
        """
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        times, table = self._schedule(steps)
        first, count = first_step(steps, strength), len(times)
        orders = [min(order, i - first + 1) for i, order in enumerate(self._orders(count))]
        rows = [self._terms(table, i, orders[i]) for i in range(first, count)]
        return self.multistep_plan(times, table, first, columns(rows))

    def _orders(self, steps: int) -> list[int]:
        """Return the order of each step: 1 to `solver_order` in turn, but lower at the end."""
        orders = [i % self.solver_order + 1 for i in range(steps)]
        ends_group = self.lower_order_final and steps % self.solver_order == 0
        if ends_group or self.final_sigmas_type == "zero":
            orders[-1] = 1
        return orders

    def _terms(self, sigmas: Column, step: int, order: int) -> dict[str, Any]:
        """Return the factors of one step of singlestep DPM-Solver."""
        alpha, sigma = self.mixed(sigmas[[step + 1, *(step - i for i in range(order))]])
        clock = half_log_snr(alpha, sigma)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            terms = singlestep_terms(self.algorithm_type, self.solver_type, alpha, sigma, clock)
        zeros = {"noise": 0.0} | {f"weight_{i}": 0.0 for i in range(self.solver_order - 1)}
        return {**zeros, **terms, "done": float(order - 1)}

    def _schedule(self, steps: int) -> tuple[Any, Column]:
        """Return the singlestep schedule: integer timesteps [n] and sigmas [n + 1]."""
        train = self.train_sigmas()
        if chosen_spacing(self):
            sigmas = self.respaced(train, steps)
            times = to_timesteps(sigmas, np.log(train))
            times = times.round() if self.use_karras_sigmas else times
        elif self.use_flow_sigmas:
            sigmas = self.flow_sigmas(steps)
            times = sigmas * self.num_train_timesteps
        else:
            last = self.unclipped_timesteps(self.lambda_min_clipped)
            times = spaced_between("linspace", self.num_train_timesteps, steps, 0, last)
            sigmas = np.interp(times, np.arange(len(train)), train)
        final = train[0] if self.final_sigmas_type == "sigma_min" else 0
        return times.astype(np.int64), np.append(sigmas, final).astype(np.float32)
