"""First and last images as conditioning: validation, preprocessing, and the network's inputs.

The network gets them in one of two modes. Channels (2.1, 2.2): the latents of a video with the
images and grey in between, and a mask of the given frames. Timesteps (TI2V): the image's latents
replace the first frame at timestep 0.

Source: Wan Team 2025, section 5.1; diffusers pipeline_wan_i2v.py for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.images import open_image, read_image
from models.spec.request import RequestError
from models.vision.preprocess import ClipPreprocessor
from models.wan.checkpoint import WanCheckpoint
from models.wan.request import WanRequest

FIRST, LAST = "image", "last_image"
Latents = Float[Array, "*batch f h w c"]
FirstFrame = Float[Array, "*batch 1 h w c"]


@dataclass(frozen=True)
class ConditioningImages:
    """Validates and preprocesses first and last images for one checkpoint."""

    checkpoint: WanCheckpoint
    preprocessor: ClipPreprocessor | None
    """Preprocessor for the image encoder; None without an image encoder."""

    def inputs(self, request: WanRequest, images: Mapping[str, bytes]) -> dict[str, np.ndarray]:
        """Return the pixels of a request's images.

        Keys are image and last_image [height, width, 3] in [-1, 1], resized as in diffusers, and
        clip_pixels [images, side, side, 3]. Absent images have no key.

        Raises: RequestError: an image is missing, unsupported, or cannot be decoded.
        """
        self._check(request, images)
        names = [name for name in (FIRST, LAST) if name in images]
        size = request.width, request.height
        inputs = {name: read_image(images[name], *size, field=name) for name in names}
        if names and self.preprocessor is not None:
            pixels = [self.preprocessor(open_image(images[name], name)) for name in names]
            inputs["clip_pixels"] = np.stack(pixels)
        return inputs

    def _check(self, request: WanRequest, images: Mapping[str, bytes]) -> None:
        checkpoint = self.checkpoint
        if FIRST in images and "image-to-video" not in checkpoint.tasks:
            raise RequestError(
                FIRST, "is not supported: this model generates videos from text only"
            )
        if FIRST not in images and "text-to-video" not in checkpoint.tasks:
            raise RequestError(FIRST, "is needed: this model generates videos from a first frame")
        if LAST in images:
            self._check_last(request, images)
        elif checkpoint.needs_last_image:
            raise RequestError(
                LAST, "is needed: this model generates videos from a first and a last frame"
            )

    def _check_last(self, request: WanRequest, images: Mapping[str, bytes]) -> None:
        if FIRST not in images:
            raise RequestError(FIRST, "is needed with last_image")
        if not self.checkpoint.takes_last_image:
            raise RequestError(
                LAST, "is not supported: this model generates videos from a first frame only"
            )
        if request.num_frames < 2:
            raise RequestError("num_frames", "must be more than 1 with last_image")


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
    """Concatenate mask and image latents, the channels that accompany the noisy latents."""
    everywhere = jnp.broadcast_to(mask[:, None, None], (*latents.shape[:3], mask.shape[1]))
    return jnp.concatenate([everywhere, latents], axis=-1)


def with_first_frame(latents: Latents, first: FirstFrame) -> Latents:
    """Replace the first latent frame by the initial image's latents."""
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
