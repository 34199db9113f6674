"""Guidance: how predictions with and without the prompt become one."""

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
    """Extrapolate from the negative prediction towards and beyond the positive one.

    Source: Ho and Salimans 2022, eq. 6, in the form negative + scale · (positive - negative).
    """
    return negative + scale * (positive - negative)


def of_first_prompt(rows: dict[str, Any], *names: str) -> dict[str, Any]:
    """The same rows for a step without guidance: with the first of their prompts alone.

    Args:
        names: of what they have a prompt each, [rows, prompts, …], or trees of that; rows may lack
            some.
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
    """The guided prediction, that share of it scaled to the positive one's standard deviation.

    Source: Lin et al. 2024 (Common Diffusion Noise Schedules), section 3.4, eq. 15 and 16.
    """
    share = share.reshape(-1, *(1,) * (guided.ndim - 1))
    scaled = guided * (_deviation(positive) / _deviation(guided))
    # A row without rescaling stays as it is, to the bit and whatever its deviation.
    return jnp.where(share > 0, share * scaled + (1 - share) * guided, guided)


def _deviation(x: Float[Array, "batch ..."]) -> Float[Array, "batch ..."]:
    return jnp.std(x, axis=tuple(range(1, x.ndim)), keepdims=True, ddof=1)


def bounded(
    guided: Float[Array, "batch ..."],
    positive: Float[Array, "batch ..."],
    most: Float[Array, " batch"],
) -> Float[Array, "batch ..."]:
    """The guided prediction, its norm at most that multiple of the positive one's; 0: any.

    Source: diffusers pipeline_z_image.py, cfg_normalization.
    """
    share = most.reshape(-1, *(1,) * (guided.ndim - 1)) * _norm(positive) / _norm(guided)
    return jnp.where((share > 0) & (share < 1), guided * share, guided)


def with_norms_of(
    positive: Float[Array, "batch tokens width"], guided: Float[Array, "batch tokens width"]
) -> Float[Array, "batch tokens width"]:
    """The guided prediction, each token of it as long as the positive one's.

    Source: diffusers pipeline_qwenimage.py, true_cfg_scale.
    """
    lengths, own = (jnp.sqrt(jnp.square(x).sum(-1, keepdims=True)) for x in (positive, guided))
    return guided * (lengths / own)


def _norm(x: Float[Array, "batch ..."]) -> Float[Array, "batch ..."]:
    return jnp.sqrt(jnp.square(x).sum(axis=tuple(range(1, x.ndim)), keepdims=True))
