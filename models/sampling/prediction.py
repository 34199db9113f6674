"""Conversion of a network's prediction to clean latents, or to the noise in the latents.

Both are (skip · latents + out · output) / over. Three numbers per step serve every method with
every prediction type (the preconditioning of Karras et al. 2022, eq. 7, as in k-diffusion's
wrappers). They are float32 columns made on the host. The division is last, as in the reference,
because the latents lose precision where alpha is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, per_row
from models.sampling.solver import Latents
from models.spec.option import OptionError


def of_noisy(prediction_type: str, sigma: Column) -> dict[str, Column]:
    """Return factors that recover the clean latents from clean + sigma · noise (Euler).

    Source: diffusers scheduling_euler_discrete.py, step.
    """
    zeros, ones = np.zeros_like(sigma), np.ones_like(sigma)
    if prediction_type == "v_prediction":
        scale = sigma**2 + 1
        return _values(1 / scale, -sigma / np.sqrt(scale), ones)
    return {"epsilon": _values(ones, -sigma, ones), "sample": _values(zeros, ones, ones)}[
        prediction_type
    ]


def of_mixed(prediction_type: str, alpha: Column, sigma: Column) -> dict[str, Column]:
    """Return factors that recover clean latents from alpha · clean + sigma · noise; not for flows.

    Raises: OptionError: epsilon at zero SNR, where it does not determine them.
    """
    zeros, ones = np.zeros_like(sigma), np.ones_like(sigma)
    if prediction_type == "epsilon" and not alpha.all():
        raise OptionError(
            "prediction_type", "epsilon divides by zero at rescale_betas_zero_snr's end"
        )
    return {
        "epsilon": _values(ones, -sigma, alpha),
        "sample": _values(zeros, ones, ones),
        "v_prediction": _values(alpha, -sigma, ones),
    }[prediction_type]


def noise_of_mixed(prediction_type: str, alpha: Column, sigma: Column) -> dict[str, Column]:
    """Return factors that recover the noise from alpha · clean + sigma · noise (`noise_…`)."""
    zeros, ones = np.zeros_like(sigma), np.ones_like(sigma)
    values = {
        "epsilon": _values(zeros, ones, ones),
        "sample": _values(ones, -alpha, sigma),
        "v_prediction": _values(sigma, alpha, ones),
        "flow_prediction": _values(ones, alpha, ones),
    }[prediction_type]
    return {f"noise_{name}": column for name, column in values.items()}


def _values(skip: Column, out: Column, over: Column) -> dict[str, Column]:
    return {"skip": skip, "out": out, "over": over}


def predicted(
    latents: Latents, output: Latents, values: Mapping[str, Float[Array, " batch"]], of: str = ""
) -> Latents:
    """Convert a network's output to a prediction, (skip · latents + out · output) / over, by row.

    Args:
        of: prefix of the factors' names in `values`.
    """
    skip, out, over = (per_row(values[f"{of}{name}"], latents) for name in ("skip", "out", "over"))
    return (skip * latents + out * output) / over


UNCLIPPED = np.finfo(np.float32).max
"""Limit of latents that are not clipped."""


def clipped(denoised: Latents, limit: Float[Array, " batch"]) -> Latents:
    """Clip clean latents to [-limit, limit], by row."""
    bound = per_row(limit, denoised)
    return jnp.clip(denoised, -bound, bound)


@runtime_checkable
class Thresholding(Protocol):
    """Options of dynamic thresholding (Imagen) of the denoised latents."""

    @property
    def dynamic_thresholding_ratio(self) -> float:
        """Quantile of the magnitudes that is used as bound."""
        ...

    @property
    def sample_max_value(self) -> float:
        """Maximum of the bound of dynamic thresholding."""
        ...


def threshold_values(options: Thresholding, steps: int) -> dict[str, Column]:
    """Return the values that `thresholded` reads; they are inputs of programs, not constants."""
    return {
        "threshold_quantile": np.full(steps, options.dynamic_thresholding_ratio, np.float32),
        "threshold_greatest": np.full(steps, options.sample_max_value, np.float32),
    }


def thresholded(denoised: Latents, values: Mapping[str, Float[Array, " batch"]]) -> Latents:
    """Apply dynamic thresholding: clip to a quantile of the row's magnitudes, and rescale.

    Source: Saharia et al. 2022 (Imagen), section 2.3; diffusers' _threshold_sample.
    """
    flat = jnp.abs(denoised).reshape(denoised.shape[0], -1)
    quantile = jax.vmap(jnp.quantile)(flat, values["threshold_quantile"])
    bound = per_row(jnp.clip(quantile, 1, values["threshold_greatest"]), denoised)
    return jnp.clip(denoised, -bound, bound) / bound
