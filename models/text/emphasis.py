"""Weights of tokens on what an encoder makes of them."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def emphasized(
    hidden: Float[Array, "batch tokens hidden"], weights: Float[Array, "batch tokens"]
) -> Float[Array, "batch tokens hidden"]:
    """Multiply each token's features by its weight, then all by what restores their mean.

    In float32. A text without any weight but 1 is left as it is, to the bit.

    Source: AUTOMATIC1111's stable-diffusion-webui, EmphasisOriginal in modules/sd_emphasis.py.
    """
    before = hidden.astype(jnp.float32)
    after = before * weights[:, :, None]
    restored = after * (_mean(before) / _mean(after))
    return jnp.where(_is_weighted(weights), restored.astype(hidden.dtype), hidden)


def scaled(
    hidden: Float[Array, "batch tokens hidden"], weights: Float[Array, "batch tokens"] | None
) -> Float[Array, "batch tokens hidden"]:
    """Multiply each token's features by its weight, of which there may be none.

    This is for T5, with which programs differ: AUTOMATIC1111 drops its weights (its
    modules/models/sd3/sd3_cond.py); ComfyUI starts from the features of an empty text and goes that
    far towards the prompt's (comfy/sd1_clip.py); Forge multiplies and by default restores the mean
    (backend/text_processing/t5_engine.py). The mean is left out here, as in Forge's "No norm": to
    restore it is to divide by it, and T5's last norm, which has no bias, lets it be near zero.
    """
    if weights is None:
        return hidden
    return (hidden.astype(jnp.float32) * weights[:, :, None]).astype(hidden.dtype)


def _mean(x: Float[Array, "batch tokens hidden"]) -> Float[Array, "batch 1 1"]:
    return x.mean(axis=(1, 2), keepdims=True)


def _is_weighted(weights: Float[Array, "batch tokens"]) -> Array:
    return (weights != 1).any(axis=1)[:, None, None]
