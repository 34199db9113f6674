"""Scheduler interface: a plan made on the host, and one pure step run on the device.

A scheduler is a frozen value, made from a checkpoint's `scheduler_config.json` and a request's
options. `plan` computes all values that depend only on the schedule (sigmas, coefficients, the
order of a step), in NumPy and in the reference's order of operations. The solver's `step`
(`models/sampling/solver.py`) is arithmetic on latents and those values. The history of a multistep
method is a pytree of arrays that `step` takes and returns. So it is batched by row, stored in
snapshots and resumed like latents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Float32
from numpy.typing import NDArray

from models.sampling.solver import Latents, Solver
from models.spec.option import OptionError

Numbers = Sequence[int | float]
"""Timesteps or sigmas, as given in requests."""
Column = NDArray[np.floating[Any]]
"""One number per step; float32 in a plan."""


@dataclass(frozen=True)
class Plan:
    """Step table of one image; float32 arrays with one entry per step, [n], except where noted."""

    timesteps: Float32[np.ndarray, " steps"]
    """Timesteps for the network; may be fractional."""
    input_scale: Float32[np.ndarray, " steps"]
    """Factor of the latents before they enter the network (diffusers' scale_model_input)."""
    values: Mapping[str, Float32[np.ndarray, " steps"]]
    """Values that `step` reads, by name."""
    draws: NDArray[np.bool_]
    """Steps at which the reference draws noise of the latents' shape. `step` requires that noise
    there, and any array (zeros) elsewhere."""
    init_noise_sigma: float
    """Scale of initial latents in text to image: noise · init_noise_sigma."""
    clean_scale: Float32[np.ndarray, " steps_and_last"]
    """[n + 1]: latents before step i that start from clean ones are clean · clean_scale[i] + noise
    · noise_scale[i] (diffusers' add_noise at timesteps[i]); the last entries are 1 and 0."""
    noise_scale: Float32[np.ndarray, " steps_and_last"]

    def __post_init__(self) -> None:
        for name, column in self.values.items():
            wrong = np.flatnonzero(~np.isfinite(column))
            if wrong.size:
                raise OptionError(
                    "scheduler",
                    f"{name} of step {wrong[0]} is not finite: the reference divides by zero too; "
                    "look at final_sigmas_type, lower_order_final, use_flow_sigmas, "
                    "rescale_betas_zero_snr with prediction_type, and the number of steps",
                )

    def __len__(self) -> int:
        return len(self.timesteps)

    def at(self, step: int) -> dict[str, np.float32]:
        """Return the plan's values of one step."""
        return {name: column[step] for name, column in self.values.items()}


def per_row(value: Float[Array, " batch"], latents: Latents) -> Array:
    """Reshape one number per row to [batch, 1, …], to broadcast it over latents."""
    return value.reshape(-1, *(1,) * (latents.ndim - 1))


def with_noise(latents: Latents, noise: Latents | None, scale: Float[Array, " batch"]) -> Latents:
    """Add noise to latents, scaled by row."""
    return latents if noise is None else latents + per_row(scale, latents) * noise


@runtime_checkable
class Scheduler(Protocol):
    """Denoising method with its options. Instances are frozen and hashable."""

    ACCEPTED_LISTS: ClassVar[frozenset[str]]
    """Request lists (`timesteps`, `sigmas`) that `plan` accepts."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """Name of the scheduler in requests (`euler`, `unipc`, …)."""
        ...

    @property
    def solver(self) -> Solver:
        """Solver of the scheduler's steps; rows with equal solvers share a program."""
        ...

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table of an image.

        Args:
            steps: num_inference_steps; ignored if `timesteps` or `sigmas` are given.
            timesteps, sigmas: the request's values, instead of the spacing's.
            strength: image-to-image strength: the first steps are skipped as in diffusers'
                get_timesteps, and multistep history starts there.

        Raises:
            OptionError: the scheduler does not accept one of these, or its options with them.
        """
        ...
