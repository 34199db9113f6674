"""DPM-Solver++ with ancestral noise and two stages: DPM++ SDE, and DPM++ 2S ancestral.

Both step exponentially from the step's start to a point below the next sigma, by the denoised
latents of the middle, and restore the next sigma by noise.

Source: k-diffusion, sample_dpmpp_sde and sample_dpmpp_2s_ancestral, as Lu et al. 2022
(DPM-Solver++), algorithm 1; diffusers scheduling_dpmsolver_sde.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, per_row, with_noise
from models.sampling.euler_ancestral import ancestral_sigmas
from models.sampling.kdpm2 import geometric_mean
from models.sampling.noisy import NoisySchedule
from models.sampling.prediction import predicted
from models.sampling.sigmas import to_timesteps
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.spaced_schedule import SpacedSteps
from models.sampling.two_stage import Stages, TwoStageSchedule


@dataclass(frozen=True)
class ExponentialStep(Solver):
    """Solver of exponential integrators: weighted sum of start, denoised latents and noise."""

    METHOD: ClassVar[str] = "exponential"

    def begin(self, latents: Float[Array, "*shape"]) -> History:
        """Return the initial history: zeros for a step's first latents and first-stage noise."""
        return {"start": jnp.zeros_like(latents), "noise": jnp.zeros_like(latents)}

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Apply one stage: a weighted sum; the second stage may reuse the first one's noise."""
        term = {name: per_row(value, latents) for name, value in values.items()}
        denoised = predicted(latents, output, values)
        start = jnp.where(term["second"] > 0, history["start"], latents)
        following = term["latents"] * start + term["denoised"] * denoised
        following = following + term["first_noise"] * history["noise"]
        following = with_noise(following, noise, values["noise"])
        drawn = jnp.zeros_like(latents) if noise is None else noise
        return SolverOutput(following, denoised, {"start": start, "noise": drawn})


@dataclass(frozen=True, kw_only=True)
class _Exponential(TwoStageSchedule):
    """Options of the schedulers with two-stage exponential integrators."""

    beta_start: float = 0.00085
    beta_end: float = 0.012

    solver: ClassVar[Solver] = ExponentialStep()
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **NoisySchedule.CHOICES,
        "prediction_type": ("epsilon", "v_prediction"),
    }


@dataclass(frozen=True, kw_only=True)
class DPMSolverSDE(_Exponential):
    """Equivalent of diffusers' DPMSolverSDEScheduler, except for the random numbers.

    The noise of both stages belongs to one Brownian motion, as in the reference. Its independent
    parts are drawn from the request's generator, as all noise is, not from a tree of torchsde's.
    """

    name: ClassVar[str] = "dpmpp_sde"
    HAS_KARRAS_ENDS: ClassVar[bool] = False

    def stages(self, steps: SpacedSteps) -> Stages:
        """Return the second stages: halfway, in the logarithm, to the next sigma."""
        now, target = steps.sigmas[:-1], steps.sigmas[1:]
        middle = geometric_mean(now, target)
        half_down, half_up = ancestral_pairs(now, middle)
        down, up = ancestral_pairs(now, target)
        length = np.where(now == target, 1, now - target)  # a step of none has no noise
        old, new = (now - middle) / length, (middle - target) / length
        return Stages(
            timesteps=to_timesteps(middle[:-1].astype(np.float64), steps.log_table),
            sigmas=middle[:-1],
            first=_values(half_down / now, noise=half_up),
            second=_without_last(
                _values(
                    down / now,
                    second=1.0,
                    noise=up * np.sqrt(new),
                    first_noise=up * np.sqrt(old),
                )
            ),
            draws=(True, True),
        )


@dataclass(frozen=True, kw_only=True)
class DPMSolver2SAncestral(_Exponential):
    """DPM-Solver++(2S) with ancestral noise, which diffusers lacks."""

    name: ClassVar[str] = "dpmpp_2s_ancestral"

    def stages(self, steps: SpacedSteps) -> Stages:
        """Return the second stages: halfway, in the logarithm, to each step's sigma_down."""
        now = steps.sigmas[:-1]
        down, up = ancestral_sigmas(steps.sigmas)
        middle = geometric_mean(now, down)
        return Stages(
            timesteps=to_timesteps(middle[:-1], steps.log_table),
            sigmas=middle[:-1],
            first=_values(middle / now),
            second=_without_last(_values(down / now, second=1.0, noise=up)),
            draws=(False, True),
        )


def ancestral_pairs(now: Column, target: Column) -> tuple[Column, Column]:
    """Return sigma_down and sigma_up of ancestral steps from `now` to `target`, float64.

    Source: k-diffusion, get_ancestral_step.
    """
    now, target = now.astype(np.float64), target.astype(np.float64)
    up = np.minimum(target, np.sqrt(target**2 * (now**2 - target**2) / now**2))
    return np.sqrt(target**2 - up**2), up


def _values(ratio: Column, **given: Column | float) -> dict[str, Column]:
    """Return the step values that `ExponentialStep` reads; those not given are 0.

    Args:
        ratio: of the sigmas after and before the step; 0 ends at the denoised latents.
    """
    values = {"second": 0.0, "noise": 0.0, "first_noise": 0.0, **given}
    columns = {**values, "latents": ratio, "denoised": 1 - ratio.astype(np.float64)}
    return {
        name: np.broadcast_to(np.asarray(value, np.float32), ratio.shape)
        for name, value in columns.items()
    }


def _without_last(values: Mapping[str, Column]) -> dict[str, Column]:
    return {name: column[:-1] for name, column in values.items()}
