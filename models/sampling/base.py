"""Scheduler interface: a plan made on the host, and one pure step run on the device.

A scheduler is a frozen value, made from a checkpoint's `scheduler_config.json` and a request's
options. Whatever depends on the schedule alone (sigmas, coefficients, which order a step has) is
computed by `plan`, in NumPy and in the reference's own order of operations; its solver's `step`
(`models/sampling/solver.py`) is arithmetic on latents and those numbers. What a multistep method
remembers goes in and comes out as a pytree of arrays, so it is batched by row, kept in snapshots
and resumed like the latents themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Float32
from numpy.typing import NDArray

from models.sampling.solver import Latents, Solver

Numbers = Sequence[int | float]
"""Timesteps or sigmas, as requests give them."""
Column = NDArray[np.floating[Any]]
"""Column of one number a step; float32 in a plan."""


@dataclass(frozen=True)
class Plan:
    """Plan of one image's steps; arrays are float32 with one entry a step, [n] unless said."""

    timesteps: Float32[np.ndarray, " steps"]
    """Timesteps for the network; may be fractional."""
    input_scale: Float32[np.ndarray, " steps"]
    """The network sees latents · input_scale (diffusers' scale_model_input)."""
    values: Mapping[str, Float32[np.ndarray, " steps"]]
    """Values that `step` reads, by name."""
    draws: NDArray[np.bool_]
    """Steps at which the reference draws noise of the latents' shape from the image's generator;
    `step` must be given it there, and anything (zeros) elsewhere."""
    init_noise_sigma: float
    """First latents of an image from nothing: noise · init_noise_sigma."""
    clean_scale: Float32[np.ndarray, " steps_and_last"]
    """[n + 1]: latents before step i that come from clean ones are clean · clean_scale[i] + noise ·
    noise_scale[i] (diffusers' add_noise at timesteps[i]); the last entries are 1 and 0."""
    noise_scale: Float32[np.ndarray, " steps_and_last"]

    def __post_init__(self) -> None:
        for name, column in self.values.items():
            wrong = np.flatnonzero(~np.isfinite(column))
            if wrong.size:
                raise ValueError(
                    f"{name} of step {wrong[0]} is not finite: the reference divides by zero too; "
                    "look at final_sigmas_type, lower_order_final, use_flow_sigmas, "
                    "rescale_betas_zero_snr with prediction_type, and the number of steps"
                )

    def __len__(self) -> int:
        return len(self.timesteps)

    def at(self, step: int) -> dict[str, np.float32]:
        """The values of one step."""
        return {name: column[step] for name, column in self.values.items()}


def per_row(value: Float[Array, " batch"], latents: Latents) -> Array:
    """Return one number a row, shaped to be multiplied with the latents: [batch, 1, …]."""
    return value.reshape(-1, *(1,) * (latents.ndim - 1))


def with_noise(latents: Latents, noise: Latents | None, scale: Float[Array, " batch"]) -> Latents:
    """Latents and noise, as strong as each row's step adds it."""
    return latents if noise is None else latents + per_row(scale, latents) * noise


@runtime_checkable
class Scheduler(Protocol):
    """Method of denoising with its options. Instances are frozen and hashable."""

    TAKES: ClassVar[frozenset[str]]
    """Names of `timesteps` and `sigmas`, those of a request's own, that `plan` may be given."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """Name in requests (`euler`, `unipc`, …)."""
        ...

    @property
    def solver(self) -> Solver:
        """Solver of its steps: schedulers with equal solvers step each other's rows."""
        ...

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """The table of steps.

        Args:
            steps: num_inference_steps; not read where `timesteps` or `sigmas` are given.
            timesteps, sigmas: the request's own instead of the spacing's.
            strength: of image to image: the first steps are left out as in diffusers'
                get_timesteps, and multistep history begins there.

        Raises:
            ValueError: the scheduler does not take these (its message names the option).
        """
        ...
