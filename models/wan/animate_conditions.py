"""Channels of Animate beside the noisy latents: the character, and what is around it.

Source: diffusers pipeline_wan_animate.py, get_i2v_mask and prepare_prev_segment_cond_latents, of a
first segment.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8


def mask_channels(
    masks: UInt8[Array, "frames height width"] | None, latents: tuple[int, ...], per_latent: int
) -> Float[Array, "f h w per_latent"]:
    """Return what is known of each frame that a latent stands for: 0 where all is drawn.

    The video's first frame, alone in its latent, fills all channels.

    Args:
        masks: 255 where a pixel is drawn; None: everywhere. The first pixel of a latent's counts.
        latents: their frames, rows and columns.
    """
    frames, rows, columns = latents
    if masks is None:
        return jnp.zeros((*latents, per_latent))
    height, width = masks.shape[1:]
    known = 1 - masks[:, :: height // rows, :: width // columns].astype(jnp.float32) / 255
    filled = jnp.concatenate([jnp.repeat(known[:1], per_latent, axis=0), known[1:]])
    return jnp.moveaxis(filled.reshape(frames, per_latent, rows, columns), 1, -1)


def conditioning(
    character: Float[Array, "1 h w c"],
    around: Float[Array, "f h w c"],
    mask: Float[Array, "f h w per_latent"],
) -> Float[Array, "f_and_1 h w joined"]:
    """Join masks and latents: of the character, all of it known, then of the video."""
    whole = jnp.ones((1, *mask.shape[1:]), mask.dtype)
    masks, latents = jnp.concatenate([whole, mask]), jnp.concatenate([character, around])
    return jnp.concatenate([masks, latents], axis=-1)
