"""Prompt weights, applied to the features of an encoder."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def emphasized(
    hidden: Float[Array, "batch tokens hidden"], weights: Float[Array, "batch tokens"]
) -> Float[Array, "batch tokens hidden"]:
    """Weight each token's features, then restore their mean (AUTOMATIC1111's emphasis).

    Computed in float32. A text whose weights are all 1 is unchanged to the bit.

    Source: AUTOMATIC1111's stable-diffusion-webui, EmphasisOriginal in modules/sd_emphasis.py.
    """
    before = hidden.astype(jnp.float32)
    after = before * weights[:, :, None]
    restored = after * (_mean(before) / _mean(after))
    return jnp.where(_is_weighted(weights), restored.astype(hidden.dtype), hidden)


def scaled(
    hidden: Float[Array, "batch tokens hidden"], weights: Float[Array, "batch tokens"] | None
) -> Float[Array, "batch tokens hidden"]:
    """Multiply each token's features by its weight; None: no weights.

    For T5, which programs handle differently. AUTOMATIC1111 drops its weights (its
    modules/models/sd3/sd3_cond.py). ComfyUI interpolates from the features of an empty text towards
    the prompt's (comfy/sd1_clip.py). Forge multiplies, and by default restores the mean
    (backend/text_processing/t5_engine.py). Here the mean is not restored, as in Forge's "No norm":
    that divides by the mean, which may be near zero because T5's last norm has no bias.
    """
    if weights is None:
        return hidden
    return (hidden.astype(jnp.float32) * weights[:, :, None]).astype(hidden.dtype)


def _mean(x: Float[Array, "batch tokens hidden"]) -> Float[Array, "batch 1 1"]:
    return x.mean(axis=(1, 2), keepdims=True)


def _is_weighted(weights: Float[Array, "batch tokens"]) -> Array:
    return (weights != 1).any(axis=1)[:, None, None]
