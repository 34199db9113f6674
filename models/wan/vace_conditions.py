"""The control video in latents: what stays, what is drawn anew, and the mask.

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
    """Number of channels of the control video.

    Args:
        latents: channels of the VAE's.
        pixel: side, in pixels, of the square that one latent stands for.
    """
    return 2 * latents + pixel**2


def control_video(
    encode: Callable[[Clip], Latents],
    frames: UInt8[Array, "frames height width 3"] | None,
    masks: UInt8[Array, "frames height width"],
) -> Float[Array, "f h w channels"]:
    """Encode a control video.

    Args:
        encode: gives the posterior's mode, as the transformer has latents.
        frames: None: none is given, all is drawn anew.
        masks: 255 where a pixel is drawn anew; more than half of that counts as such.
    """
    levels = masks.astype(jnp.float32) / 255
    clip = jnp.zeros((*levels.shape, 3)) if frames is None else frames.astype(jnp.float32) / 255
    clip = clip if frames is None else clip * 2 - 1
    anew = (levels > 0.5).astype(jnp.float32)[..., None]
    stays, changes = encode(clip * (1 - anew)), encode(clip * anew)
    return jnp.concatenate([stays, changes, mask_channels(levels, stays.shape[:3])], axis=-1)


def mask_channels(
    levels: Float[Array, "frames height width"], latents: tuple[int, ...]
) -> Float[Array, "f h w pixels"]:
    """A mask's pixels as channels of the latent that they lie under, row by row.

    Frames are chosen as if all latents stood for equally many ("nearest-exact"): with masks of the
    first frame alone, or of the last, the network sees none.

    Args:
        latents: their frames, rows and columns.
    """
    frames, height, width = levels.shape
    f, h, w = latents
    middle = ((np.arange(f) + 0.5) * (frames / f)).astype(int)
    squares = levels[middle].reshape(f, h, height // h, w, width // w)
    return squares.transpose(0, 1, 3, 2, 4).reshape(f, h, w, -1)


def with_references(
    control: Float[Array, "f h w channels"], references: Float[Array, "r h w c"]
) -> Float[Array, "all h w channels"]:
    """Put references in front, the last one first: frames that stay, with a mask of nought."""
    behind = control.shape[-1] - references.shape[-1]
    padded = jnp.pad(references[::-1], ((0, 0), (0, 0), (0, 0), (0, behind)))
    return jnp.concatenate([padded, control])
