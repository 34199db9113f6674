"""Initial latents: pure noise, or noise over an image, optionally with a mask.

To match diffusers for a seed, random numbers must be drawn in its order. One generator draws the
VAE's posterior samples, the first noise, and each step's noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.typing import DTypeLike

from models.interface.image_start import start_inputs
from models.interface.images import read_image, read_mask
from models.sampling.base import Plan
from models.sampling.torch_rng import TorchGenerator
from models.sdxl.request import SdxlRequest

Noise = Float32[np.ndarray, "h w latent"]


@dataclass(frozen=True)
class Draws:
    """Random generator of one image, with the shape and precision of its samples."""

    generator: TorchGenerator
    h: int
    w: int
    channels: int
    dtype: DTypeLike
    """Dtype of the noise: that of the text embeddings, as in diffusers."""
    vae_dtype: DTypeLike
    """Dtype of the VAE's encoder and of its posterior samples."""

    def noise(self) -> Noise:
        """Draw the next noise for the latents."""
        return self._draw(self.dtype)

    def posterior(self) -> Noise:
        """Draw the noise of the VAE's posterior."""
        return self._draw(self.vae_dtype)

    def _draw(self, dtype: DTypeLike) -> Noise:
        values = self.generator.randn((self.channels, self.h, self.w), dtype)
        return values.astype(dtype).astype(np.float32).transpose(1, 2, 0)


def from_text(plan: Plan, draws: Draws) -> dict[str, np.ndarray]:
    """Return the text-to-image inputs: `noise` [h, w, c], and its scale in the first latents."""
    return {"noise": draws.noise(), "noise_scale": _scale(plan.init_noise_sigma)}


def from_image(
    request: SdxlRequest, plan: Plan, draws: Draws, images: Mapping[str, bytes]
) -> dict[str, np.ndarray]:
    """Return the image-to-image inputs: noise, the image's `start_inputs`, and both scales.

    Raises: RequestError: the image cannot be decoded.
    """
    size, shape = (request.width, request.height), (draws.h, draws.w, draws.channels)
    return start_inputs(images["image"], size, shape, draws.posterior) | _noised(plan, draws)


def inpainting(
    request: SdxlRequest, plan: Plan, draws: Draws, images: Mapping[str, bytes]
) -> dict[str, np.ndarray]:
    """Return the image-to-image inputs and `mask` [h, w, 1] for UNets without mask channels.

    The mask is 1 where the image is regenerated.
    """
    inputs = from_image(request, plan, draws, images)
    inputs["mask"] = _of_latents(_read_mask(request, images), draws)
    draws.posterior()  # diffusers also encodes the masked image here, and discards the result
    return inputs | _pure_noise(request, plan)


def inpainting_by_channels(
    request: SdxlRequest, plan: Plan, draws: Draws, images: Mapping[str, bytes]
) -> dict[str, np.ndarray]:
    """Return the inputs for UNets with mask channels; adds `masked_image`, grey inside the mask.

    At full strength, these UNets need no other input of the image.
    """
    pixels = read_image(images["image"], request.width, request.height)
    mask = _read_mask(request, images)
    if request.strength == 1:
        inputs = from_text(plan, draws)
    else:
        inputs = from_image(request, plan, draws, images)
    return inputs | {
        "mask": _of_latents(mask, draws),
        "masked_image": pixels * (mask < 0.5),
        "masked_image_noise": draws.posterior(),
    }


def _noised(plan: Plan, draws: Draws) -> dict[str, np.ndarray]:
    return {
        "noise": draws.noise(),
        "noise_scale": _scale(plan.noise_scale[0]),
        "clean_scale": _scale(plan.clean_scale[0]),
    }


def _pure_noise(request: SdxlRequest, plan: Plan) -> dict[str, np.ndarray]:
    """Return the scales at full strength, where the first latents are pure noise."""
    if request.strength < 1:
        return {}
    return {"noise_scale": _scale(plan.init_noise_sigma), "clean_scale": _scale(0.0)}


def _scale(factor: float | np.float32) -> Float32[np.ndarray, ""]:
    return np.asarray(factor, np.float32)


def _read_mask(
    request: SdxlRequest, images: Mapping[str, bytes]
) -> Float32[np.ndarray, "height width 1"]:
    return read_mask(images["mask_image"], request.width, request.height)[..., None]


def _of_latents(
    mask: Float32[np.ndarray, "height width 1"], draws: Draws
) -> Float32[np.ndarray, "h w 1"]:
    """Sample an inpainting mask at the top left pixel of each latent."""
    down = len(mask) // draws.h
    return mask[::down, ::down]
