"""First and last images as conditioning of the denoising network, in one of two modes.

Channels (2.1, 2.2): the network gets the latents of a video with the images and grey in between,
and a mask of the given frames. Timesteps (TI2V): the image's latents replace the first frame at
timestep 0.

Source: Wan Team 2025, section 5.1; diffusers pipeline_wan_i2v.py for the conventions.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Latents = Float[Array, "*batch f h w c"]
FirstFrame = Float[Array, "*batch 1 h w c"]


def conditioning_video(
    first: Float[Array, "height width 3"], last: Float[Array, "height width 3"] | None, frames: int
) -> Float[Array, "frames height width 3"]:
    """Build a video of the first frame, grey (0) frames, and the last frame if given."""
    endpoints = [first[None]] if last is None else [first[None], last[None]]
    grey = jnp.zeros((frames - len(endpoints), *first.shape), first.dtype)
    return jnp.concatenate([endpoints[0], grey, *endpoints[1:]])


def known_frames(
    frames: int, per_latent: int, *, with_last: bool
) -> Float[np.ndarray, "f per_latent"]:
    """Return the mask of given frames: 1 for given, 0 for missing.

    Each latent frame has one mask channel per video frame. The first video frame has a latent frame
    to itself and fills all channels.

    Args:
        frames: number of latent frames.
        per_latent: video frames per latent frame.
    """
    mask = np.zeros((frames, per_latent), np.float32)
    mask[0] = 1
    if with_last:
        mask[-1, -1] = 1
    return mask


def join(
    mask: Float[np.ndarray, "f per_latent"], latents: Float[Array, "f h w c"]
) -> Float[Array, "f h w joined"]:
    """Concatenate mask and latents into the channels that accompany the noisy latents."""
    everywhere = jnp.broadcast_to(mask[:, None, None], (*latents.shape[:3], mask.shape[1]))
    return jnp.concatenate([everywhere, latents], axis=-1)


def with_first_frame(latents: Latents, first: FirstFrame) -> Latents:
    """Replace the first latent frame by the image's latents."""
    return jnp.concatenate([first, latents[..., 1:, :, :, :]], axis=-4)


def token_timesteps(
    timestep: Float[Array, " batch"], tokens: tuple[int, ...]
) -> Float[Array, "batch tokens"]:
    """Return the timestep of every token; 0 for the first frame, which is clean.

    Args:
        tokens: frames, rows and columns of tokens.
    """
    frames, rows, columns = tokens
    noisy = (np.arange(frames * rows * columns) >= rows * columns).astype(np.float32)
    return timestep[:, None] * noisy
