"""VACE's control video in latents: preserved pixels, generated pixels, and the mask.

Source: Jiang et al. 2025 (VACE), section 3.2, "concept decoupling" and "context latent encode";
diffusers pipeline_wan_vace.py, prepare_video_latents and prepare_masks.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

Clip = Float[Array, "frames height width 3"]
Latents = Float[Array, "f h w c"]


def control_channels(latents: int, pixel: int) -> int:
    """Return the number of channels of the control video.

    Args:
        latents: channels of the VAE's latents.
        pixel: side of a latent in pixels.
    """
    return 2 * latents + pixel**2


def control_video(
    encode: Callable[[Clip], Latents],
    frames: UInt8[Array, "frames height width 3"] | None,
    masks: UInt8[Array, "frames height width"],
) -> Float[Array, "f h w channels"]:
    """Encode a control video of VACE to latents.

    Args:
        encode: returns the posterior's mode, normalized for the transformer.
        frames: input frames; None if all pixels are generated.
        masks: 255 where a pixel is generated; values above half count as generated.
    """
    levels = masks.astype(jnp.float32) / 255
    video = jnp.zeros((*levels.shape, 3)) if frames is None else frames.astype(jnp.float32) / 255
    video = video if frames is None else video * 2 - 1
    generated = (levels > 0.5).astype(jnp.float32)[..., None]
    preserved, replaced = encode(video * (1 - generated)), encode(video * generated)
    return jnp.concatenate(
        [preserved, replaced, mask_channels(levels, preserved.shape[:3])], axis=-1
    )


def mask_channels(
    levels: Float[Array, "frames height width"], latents: tuple[int, ...]
) -> Float[Array, "f h w pixels"]:
    """Return a mask's pixels as channels of their latent, row by row.

    Frames are sampled as if all latent frames covered equally many ("nearest-exact"). Hence masks
    of the first or the last frame alone have no effect.

    Args:
        latents: frames, rows and columns of the latents.
    """
    frames, height, width = levels.shape
    f, h, w = latents
    middle = ((np.arange(f) + 0.5) * (frames / f)).astype(int)
    squares = levels[middle].reshape(f, h, height // h, w, width // w)
    return squares.transpose(0, 1, 3, 2, 4).reshape(f, h, w, -1)


def with_references(
    control: Float[Array, "f h w channels"], references: Float[Array, "r h w c"]
) -> Float[Array, "all h w channels"]:
    """Prepend reference images, the last one first, as preserved frames with a zero mask."""
    missing = control.shape[-1] - references.shape[-1]
    padded = jnp.pad(references[::-1], ((0, 0), (0, 0), (0, 0), (0, missing)))
    return jnp.concatenate([padded, control])
