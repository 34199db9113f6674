"""Conversion of a network's prediction into the clean latents or the noise in them.

Both are (skip · latents + out · output) / over: three numbers a step serve every method with every
prediction type (the preconditioning of Karras et al. 2022, eq. 7, as k-diffusion's wrappers have
it). They are float32 columns made on the host; the division stays last, as in the reference, since
little of the latents' precision is left where alpha is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, Latents, per_row


def of_noisy(prediction_type: str, sigma: Column) -> dict[str, Column]:
    """Clean latents from clean + sigma · noise (Euler).

    Source: diffusers scheduling_euler_discrete.py, step.
    """
    none, one = np.zeros_like(sigma), np.ones_like(sigma)
    if prediction_type == "v_prediction":
        scale = sigma**2 + 1
        return _values(1 / scale, -sigma / np.sqrt(scale), one)
    return {"epsilon": _values(one, -sigma, one), "sample": _values(none, one, one)}[
        prediction_type
    ]


def of_mixed(prediction_type: str, alpha: Column, sigma: Column) -> dict[str, Column]:
    """Clean latents from alpha · clean + sigma · noise, for every type but the flow's.

    Raises: ValueError where epsilon says nothing about them: at zero SNR.
    """
    none, one = np.zeros_like(sigma), np.ones_like(sigma)
    if prediction_type == "epsilon" and not alpha.all():
        raise ValueError("prediction_type epsilon divides by zero at rescale_betas_zero_snr's end")
    return {
        "epsilon": _values(one, -sigma, alpha),
        "sample": _values(none, one, one),
        "v_prediction": _values(alpha, -sigma, one),
    }[prediction_type]


def noise_of_mixed(prediction_type: str, alpha: Column, sigma: Column) -> dict[str, Column]:
    """The noise in alpha · clean + sigma · noise; names begin with `noise_`."""
    none, one = np.zeros_like(sigma), np.ones_like(sigma)
    values = {
        "epsilon": _values(none, one, one),
        "sample": _values(one, -alpha, sigma),
        "v_prediction": _values(sigma, alpha, one),
    }[prediction_type]
    return {f"noise_{name}": column for name, column in values.items()}


def _values(skip: Column, out: Column, over: Column) -> dict[str, Column]:
    return {"skip": skip, "out": out, "over": over}


def predicted(
    latents: Latents, output: Latents, values: Mapping[str, Float[Array, " batch"]], of: str = ""
) -> Latents:
    """(skip · latents + out · output) / over, by row.

    Args:
        of: what their names in `values` begin with.
    """
    skip, out, over = (per_row(values[f"{of}{name}"], latents) for name in ("skip", "out", "over"))
    return (skip * latents + out * output) / over


UNCLIPPED = np.finfo(np.float32).max
"""The limit of latents that are not clipped."""


def clipped(denoised: Latents, limit: Float[Array, " batch"]) -> Latents:
    """Clean latents between -limit and limit of their row."""
    bound = per_row(limit, denoised)
    return jnp.clip(denoised, -bound, bound)


@runtime_checkable
class Thresholding(Protocol):
    """Options of dynamic thresholding."""

    @property
    def dynamic_thresholding_ratio(self) -> float:
        """Quantile of the magnitudes that bounds them."""
        ...

    @property
    def sample_max_value(self) -> float:
        """Greatest bound."""
        ...


def threshold_values(options: Thresholding, steps: int) -> dict[str, Column]:
    """Columns that `thresholded` reads. A request chooses them: no program has them in it."""
    return {
        "threshold_quantile": np.full(steps, options.dynamic_thresholding_ratio, np.float32),
        "threshold_greatest": np.full(steps, options.sample_max_value, np.float32),
    }


def thresholded(denoised: Latents, values: Mapping[str, Float[Array, " batch"]]) -> Latents:
    """Dynamic thresholding: saturated values pulled in by a quantile of the row's magnitudes.

    Source: Saharia et al. 2022 (Imagen), section 2.3; diffusers' _threshold_sample.
    """
    flat = jnp.abs(denoised).reshape(denoised.shape[0], -1)
    quantile = jax.vmap(jnp.quantile)(flat, values["threshold_quantile"])
    bound = per_row(jnp.clip(quantile, 1, values["threshold_greatest"]), denoised)
    return jnp.clip(denoised, -bound, bound) / bound
