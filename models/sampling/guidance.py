"""Guidance: combine predictions with and without the prompt."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def classifier_free(
    positive: Float[Array, "batch ..."],
    negative: Float[Array, "batch ..."],
    scale: Float[Array, "batch ..."],
) -> Float[Array, "batch ..."]:
    """Apply classifier-free guidance: extrapolate from the negative beyond the positive prediction.

    Source: Ho and Salimans 2022, eq. 6, in the form negative + scale · (positive - negative).
    """
    return negative + scale * (positive - negative)


def of_first_prompt(rows: dict[str, Any], *names: str) -> dict[str, Any]:
    """Reduce rows to the first of their prompts, for a step without guidance.

    Args:
        names: leaves or trees with a prompt axis, [rows, prompts, …]; rows may lack some.
    """
    first = {
        name: jax.tree.map(lambda leaf: leaf[:, :1], rows[name]) for name in names if name in rows
    }
    return {**rows, **first}


def rescale(
    guided: Float[Array, "batch ..."],
    positive: Float[Array, "batch ..."],
    share: Float[Array, " batch"],
) -> Float[Array, "batch ..."]:
    """Scale a share of the guided prediction to the positive one's standard deviation.

    Source: Lin et al. 2024 (Common Diffusion Noise Schedules), section 3.4, eq. 15 and 16.
    """
    share = share.reshape(-1, *(1,) * (guided.ndim - 1))
    scaled = guided * (_deviation(positive) / _deviation(guided))
    # A row without rescaling is unchanged to the bit, for any deviation.
    return jnp.where(share > 0, share * scaled + (1 - share) * guided, guided)


def _deviation(x: Float[Array, "batch ..."]) -> Float[Array, "batch ..."]:
    return jnp.std(x, axis=tuple(range(1, x.ndim)), keepdims=True, ddof=1)


def bounded(
    guided: Float[Array, "batch ..."],
    positive: Float[Array, "batch ..."],
    most: Float[Array, " batch"],
) -> Float[Array, "batch ..."]:
    """Limit the guided prediction's norm to a multiple of the positive one's; 0: no limit.

    Source: diffusers pipeline_z_image.py, cfg_normalization.
    """
    share = most.reshape(-1, *(1,) * (guided.ndim - 1)) * _norm(positive) / _norm(guided)
    return jnp.where((share > 0) & (share < 1), guided * share, guided)


def with_norms_of(
    positive: Float[Array, "batch tokens width"], guided: Float[Array, "batch tokens width"]
) -> Float[Array, "batch tokens width"]:
    """Scale each token of the guided prediction to the norm of the positive one's.

    Tokens that are zero, as padding is, remain zero.

    Source: diffusers pipeline_qwenimage.py, true_cfg_scale.
    """
    target, norms = (jnp.sqrt(jnp.square(x).sum(-1, keepdims=True)) for x in (positive, guided))
    return guided * (target / jnp.where(norms > 0, norms, 1))


def _norm(x: Float[Array, "batch ..."]) -> Float[Array, "batch ..."]:
    return jnp.sqrt(jnp.square(x).sum(axis=tuple(range(1, x.ndim)), keepdims=True))
