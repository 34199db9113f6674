"""Conditioning channels of Animate: the character's image and the background.

Source: diffusers pipeline_wan_animate.py, get_i2v_mask and prepare_prev_segment_cond_latents, for a
first segment.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8


def mask_channels(
    masks: UInt8[Array, "frames height width"] | None, latents: tuple[int, ...], per_latent: int
) -> Float[Array, "f h w per_latent"]:
    """Return the mask of given pixels for each latent: 1 where given, 0 where generated.

    The video's first frame has a latent frame to itself and fills all channels.

    Args:
        masks: 255 where a pixel is generated; None: everywhere. Sampled at each latent's first
            pixel.
        latents: frames, rows and columns of the latents.
    """
    frames, rows, columns = latents
    if masks is None:
        return jnp.zeros((*latents, per_latent))
    height, width = masks.shape[1:]
    known_pixels = 1 - masks[:, :: height // rows, :: width // columns].astype(jnp.float32) / 255
    filled = jnp.concatenate([jnp.repeat(known_pixels[:1], per_latent, axis=0), known_pixels[1:]])
    return jnp.moveaxis(filled.reshape(frames, per_latent, rows, columns), 1, -1)


def conditioning(
    character: Float[Array, "1 h w c"],
    video: Float[Array, "f h w c"],
    mask: Float[Array, "f h w per_latent"],
) -> Float[Array, "f_and_1 h w joined"]:
    """Concatenate masks and latents: first the character's with mask 1, then the video's."""
    ones = jnp.ones((1, *mask.shape[1:]), mask.dtype)
    masks, latents = jnp.concatenate([ones, mask]), jnp.concatenate([character, video])
    return jnp.concatenate([masks, latents], axis=-1)
