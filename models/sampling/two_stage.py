"""Methods that evaluate the network twice a step: a first stage, and a second one in between.

Each evaluation is a step of the engine, so that rows of all methods share its loop. The history
holds the latents at the step's start, to which the second stage returns. The last step has one
stage, because it ends at sigma 0: n steps are 2 n - 1 evaluations, as in diffusers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, Numbers, Plan, per_row, with_noise
from models.sampling.prediction import UNCLIPPED, clipped, of_noisy, predicted
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.spaced_schedule import SpacedSchedule, SpacedSteps
from models.sampling.timesteps import check_request, first_step
from models.spec.evaluations import Evaluations

TWO_A_STEP = Evaluations(per_step=2, more=-1)


@dataclass(frozen=True)
class TwoStageStep(Solver):
    """Solver of Runge-Kutta methods of order 2, with optional noise."""

    METHOD: ClassVar[str] = "two_stage"

    def begin(self, latents: Float[Array, "*shape"]) -> History:
        """Return the initial history: zeros for latents and derivative at the step's start."""
        return {"start": jnp.zeros_like(latents), "derivative": jnp.zeros_like(latents)}

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Take a two-stage step from its start, along the mean of both stages' derivatives."""
        term = {name: per_row(value, latents) for name, value in values.items()}
        denoised = clipped(predicted(latents, output, values), values["limit"])
        derivative = (latents - denoised) / term["sigma"]
        start = jnp.where(term["second"] > 0, history["start"], latents)
        slope = term["weight"] * derivative + term["first_weight"] * history["derivative"]
        following = with_noise(start + slope * term["length"], noise, values["noise"])
        return SolverOutput(following, denoised, {"start": start, "derivative": derivative})


class Stages(NamedTuple):
    """Second stages of n steps, of which the last has none, and the values of both stages."""

    timesteps: Column
    """[n - 1]."""
    sigmas: Column
    """Noise in the latents at the second stage, [n - 1]."""
    first: Mapping[str, Column]
    """[n] each."""
    second: Mapping[str, Column]
    """[n - 1] each, with the names of `first`."""
    draws: tuple[bool, bool] = (False, False)
    """Whether the stages draw noise; never in the last step."""


@dataclass(frozen=True, kw_only=True)
class TwoStageSchedule(SpacedSchedule):
    """Base of two-stage schedulers: the plan alternates both stages' evaluations."""

    EVALUATIONS: ClassVar[Evaluations] = TWO_A_STEP
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset()

    def stages(self, steps: SpacedSteps) -> Stages:
        """Return the second stages of the steps, and the solver's values."""
        raise NotImplementedError

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`, one entry per evaluation."""
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        spaced = self.spaced_steps(steps)
        stages = self.stages(spaced)
        first = 2 * first_step(steps, strength)
        now = spaced.sigmas[:-1]
        times = interleaved(spaced.timesteps, stages.timesteps)
        targets = np.append(interleaved(now, now[1:]), np.float32(0))  # as the reference masks
        plan = self.noisy_plan(times, targets, first)
        inputs = interleaved(now, stages.sigmas)[first:]
        values = {name: interleaved(of, stages.second[name]) for name, of in stages.first.items()}
        draws = np.array([*stages.draws * (len(now) - 1), False])
        return replace(
            plan,
            input_scale=1 / np.sqrt(inputs**2 + 1),
            values={
                **of_noisy(self.prediction_type, inputs),
                **{name: column[first:] for name, column in values.items()},
            },
            draws=draws[first:],
        )


def interleaved(first: Column, second: Column) -> Column:
    """Interleave the values of first and second stages, float32: [n] and [n - 1] → [2 n - 1]."""
    both = np.empty(len(first) + len(second), np.float32)
    both[0::2], both[1::2] = first, second
    return both


def two_stage_values(
    sigma: Column, length: Column, limit: float = float(UNCLIPPED), **given: Column | float
) -> dict[str, Column]:
    """Return the values that `TwoStageStep` reads; defaults are those of a first stage."""
    values = {"second": 0.0, "weight": 1.0, "first_weight": 0.0, "noise": 0.0, "limit": limit}
    columns = {**values, **given, "sigma": sigma, "length": length}
    return {
        name: np.broadcast_to(np.asarray(value, np.float32), sigma.shape)
        for name, value in columns.items()
    }
