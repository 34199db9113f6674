"""DEIS: the noise's polynomial in log rho, integrated over rho, the ratio of noise to signal.

Source: Zhang and Chen 2023 (DEIS), section 3.2, log rho multistep; diffusers
scheduling_deis_multistep.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from models.sampling.base import Column, Numbers, Plan
from models.sampling.dpm import DPMStep
from models.sampling.dpm_terms import distinct_nodes
from models.sampling.multistep import MultistepSchedule, columns, half_log_snr
from models.sampling.sigmas import chosen_spacing, to_timesteps
from models.sampling.solver import Solver
from models.sampling.timesteps import check_request, first_step, spaced_between

_FEW_STEPS = 15
"""Number of steps below which the last steps may have a lower order."""


@dataclass(frozen=True, kw_only=True)
class DEIS(MultistepSchedule):
    """Equivalent of diffusers' DEISMultistepScheduler.

    It ends at the table's lowest sigma; other spacings repeat their last one.
    """

    algorithm_type: str = "deis"
    solver_type: str = "logrho"

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **MultistepSchedule.CHOICES,
        "algorithm_type": ("deis",),
        "solver_type": ("logrho",),
    }
    READ_AS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "algorithm_type": {"dpmsolver": "deis", "dpmsolver++": "deis"},
        "solver_type": dict.fromkeys(("midpoint", "heun", "bh1", "bh2"), "logrho"),
    }
    """Other schedulers' config values, and the reference's replacements."""
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        """Name of the scheduler in requests."""
        return "deis"

    @property
    def solves_for_noise(self) -> bool:
        """True: the integral is over the predicted noise."""
        return True

    @property
    def converts_flows(self) -> bool:
        """True: a flow's prediction is converted to noise."""
        return True

    @property
    def solver(self) -> Solver:
        """Solver of DEIS: DPM-Solver's step, with other coefficients."""
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
        times, table = self._schedule(steps)
        first, count = first_step(steps, strength), len(times)
        orders = [(i, self._order(i, i - first, count)) for i in range(first, count)]
        terms = columns([self._terms(table, i, order) for i, order in orders])
        return self.multistep_plan(times, table, first, terms)

    def _order(self, step: int, done: int, steps: int) -> int:
        """Return a step's order: lower at the start (no history) and at the end (stability)."""
        few = self.lower_order_final and steps < _FEW_STEPS
        left = steps - step if few else self.solver_order
        return min(self.solver_order, done + 1, left)

    def _terms(self, sigmas: Column, step: int, order: int) -> dict[str, Any]:
        """Return the factors of one DEIS step, in the form that `DPMStep` reads."""
        alpha, sigma = self.mixed(sigmas[[step + 1, *(step - i for i in range(order))]])
        order = distinct_nodes(np.log(sigma[1:] / alpha[1:]))
        alpha, sigma = alpha[: order + 1], sigma[: order + 1]
        terms = {f"difference_{i}": 0.0 for i in range(1, self.solver_order)} | {"noise": 0.0}
        terms["latents"] = alpha[0] / alpha[1]
        if order == 1:
            clock = half_log_snr(alpha, sigma)
            return terms | {"current": -sigma[0] * (np.exp(clock[0] - clock[1]) - 1)}
        weights = alpha[0] * _integrals(sigma / alpha)
        differences = {f"difference_{i}": -weights[i:].sum() for i in range(1, order)}
        return terms | {"current": weights.sum()} | differences

    def _schedule(self, steps: int) -> tuple[Any, Column]:
        """Return the schedule of DEIS: integer timesteps [n] and sigmas [n + 1]."""
        train = self.train_sigmas()
        if chosen_spacing(self):
            sigmas = self.respaced(train, steps)
            times = to_timesteps(sigmas, np.log(train))
            times = times.round() if self.use_karras_sigmas else times
        elif self.use_flow_sigmas:
            sigmas = self.flow_sigmas(steps)
            times = sigmas * self.num_train_timesteps
        else:
            spacing, count = self.timestep_spacing, self.num_train_timesteps
            times = spaced_between(spacing, count, steps, self.steps_offset)
            sigmas = np.interp(times, np.arange(len(train)), train)
        is_table = not (chosen_spacing(self) or self.use_flow_sigmas)
        final = train[0] if is_table else sigmas[-1]
        return times.astype(np.int64), np.append(sigmas, final).astype(np.float32)


def _integrals(rho: Column) -> Column:
    """Return the integrals of the basis polynomials in log rho, the newest node first.

    Args:
        rho: at the step's target, and at the nodes before it, the newest first; 2 or 3.

    Source: the antiderivatives of Zhang and Chen 2023, in the reference's order of operations.
    """
    target, nodes = rho[0], rho[1:]
    weights = []
    for i, node in enumerate(nodes):
        others = np.roll(nodes, -i)[1:]
        antiderivative = _linear if len(others) == 1 else _quadratic
        weights.append(
            antiderivative(target, node, others) - antiderivative(nodes[0], node, others)
        )
    return np.array(weights, np.float32)


def _linear(x: Any, node: Any, others: Column) -> Any:
    """Integrate (log x - log c) / (log b - log c) over x."""
    (c,) = np.log(others)
    return x * (-c + np.log(x) - 1) / (np.log(node) - c)


def _quadratic(x: Any, node: Any, others: Column) -> Any:
    """Integrate (log x - log c) (log x - log d) / (log b - log c) (log b - log d) over x."""
    c, d = np.log(others)
    log, b = np.log(x), np.log(node)
    numerator = x * (c * (d - log + 1) - d * log + d + log**2 - 2 * log + 2)
    return numerator / ((b - c) * (b - d))
