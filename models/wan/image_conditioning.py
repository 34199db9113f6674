"""Image conditioning: first and last images as conditions of the denoising network.

Two ways. A network with further input channels sees, beside the noisy latents, the latents of a
video that has the images and grey in between, and a mask of which frames those are (2.1, 2.2). A
network with a timestep for each token sees the image's own latents in place of the first frame,
at timestep 0 (TI2V).

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
    """A video that has the first and perhaps the last frame, and grey (0) in between."""
    ends = [first[None]] if last is None else [first[None], last[None]]
    grey = jnp.zeros((frames - len(ends), *first.shape), first.dtype)
    return jnp.concatenate([ends[0], grey, *ends[1:]])


def known_frames(
    frames: int, per_latent: int, *, with_last: bool
) -> Float[np.ndarray, "f per_latent"]:
    """1 for each frame that is given.

    Each latent frame has a channel for each of its frames; the video's first frame, alone in its
    latent, fills all of them.

    Args:
        frames: of the latents.
        per_latent: frames that a latent frame stands for.
    """
    mask = np.zeros((frames, per_latent), np.float32)
    mask[0] = 1
    if with_last:
        mask[-1, -1] = 1
    return mask


def join(
    mask: Float[np.ndarray, "f per_latent"], latents: Float[Array, "f h w c"]
) -> Float[Array, "f h w joined"]:
    """The condition that goes beside the noisy latents: the mask everywhere, then the latents."""
    everywhere = jnp.broadcast_to(mask[:, None, None], (*latents.shape[:3], mask.shape[1]))
    return jnp.concatenate([everywhere, latents], axis=-1)


def with_first_frame(latents: Latents, first: FirstFrame) -> Latents:
    """The latents with the image's own in place of their first frame."""
    return jnp.concatenate([first, latents[..., 1:, :, :, :]], axis=-4)


def token_timesteps(
    timestep: Float[Array, " batch"], tokens: tuple[int, ...]
) -> Float[Array, "batch tokens"]:
    """The timestep of every token; 0 for the first frame, which is already clean.

    Args:
        tokens: frames, rows and columns of them.
    """
    frames, rows, columns = tokens
    noisy = (np.arange(frames * rows * columns) >= rows * columns).astype(np.float32)
    return timestep[:, None] * noisy
