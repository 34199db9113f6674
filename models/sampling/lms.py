"""Linear multistep method (LMS): the polynomial through the last derivatives, integrated exactly.

Source: k-diffusion, sample_lms; diffusers scheduling_lms_discrete.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, Numbers, Plan, per_row
from models.sampling.dpm_terms import distinct_nodes
from models.sampling.prediction import predicted
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.spaced_schedule import SpacedSchedule
from models.sampling.timesteps import check_request, first_step

ORDER = 4
"""Number of derivatives that a step uses."""


@dataclass(frozen=True)
class LMSStep(Solver):
    """Solver of LMS: a weighted sum of the last derivatives."""

    METHOD: ClassVar[str] = "lms"

    def begin(self, latents: Float[Array, "*shape"]) -> History:
        """Return the initial history: zeros for the derivatives of earlier steps, newest first."""
        return {f"previous_{i}": jnp.zeros_like(latents) for i in range(1, ORDER)}

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Apply one LMS step: add each derivative, times the integral of its basis polynomial."""
        denoised = predicted(latents, output, values)
        derivative = (latents - denoised) / per_row(values["sigma"], latents)
        recent = [derivative, *(history[f"previous_{i}"] for i in range(1, ORDER))]
        total = per_row(values["weight_0"], latents) * derivative
        for i in range(1, ORDER):
            total = total + per_row(values[f"weight_{i}"], latents) * recent[i]
        history_now = {f"previous_{i}": recent[i - 1] for i in range(1, ORDER)}
        return SolverOutput(latents + total, denoised, history_now)


@dataclass(frozen=True, kw_only=True)
class LMS(SpacedSchedule):
    """Equivalent of diffusers' LMSDiscreteScheduler."""

    name: ClassVar[str] = "lms"
    solver: ClassVar[Solver] = LMSStep()
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset()
    HAS_KARRAS_ENDS: ClassVar[bool] = False

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`.

        Image to image keeps the order of the step's index, as in the reference: derivatives of
        skipped steps count as zero.
        """
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        times, table, _ = self.spaced_steps(steps)
        weights = np.array([_weights(table, step) for step in range(len(times))], np.float32)
        named = {f"weight_{i}": weights[:, i] for i in range(ORDER)}
        times = times.astype(np.float32)
        return self.noisy_plan(times, table, first_step(steps, strength), **named)


def _weights(sigmas: Column, step: int) -> list[float]:
    """Integrate the basis polynomials of one LMS step's derivatives, newest first; then zeros.

    Exact but for rounding, where the reference calls an adaptive quadrature: Gauss' two points
    integrate polynomials of degree 3.
    """
    nodes = sigmas[[step - i for i in range(min(step + 1, ORDER))]].astype(np.float64)
    order = distinct_nodes(nodes)
    nodes = nodes[:order]
    start, end = float(sigmas[step]), float(sigmas[step + 1])
    points = (start + end) / 2 + (end - start) / 2 * np.array([-1.0, 1.0]) / np.sqrt(3)
    weights = [(end - start) / 2 * _basis(nodes, i, points).sum() for i in range(order)]
    return [*weights, *[0.0] * (ORDER - order)]


def _basis(nodes: Column, index: int, points: Column) -> Column:
    """Evaluate the Lagrange basis polynomial of one node."""
    others = np.delete(nodes, index)
    ratios = (points[:, None] - others) / (nodes[index] - others)
    product: Column = ratios.prod(axis=1)
    return product
