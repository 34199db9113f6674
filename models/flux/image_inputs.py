"""Host-side inputs of an image: initial noise, and the request's images as pixels for the VAE.

To match diffusers for a seed, random numbers must be drawn in its order. One generator draws the
VAE's posterior samples and the initial noise, in the order of these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32

from models.flux.reference import SIDE_PX, read_reference
from models.flux.request import FluxRequest
from models.interface.image_start import start_inputs
from models.interface.images import read_image, read_mask
from models.sampling.base import Plan
from models.sampling.torch_rng import TorchGenerator
from models.spec.request import RequestError

Inputs = dict[str, np.ndarray]
Files = Mapping[str, bytes]
"""Images of a request by field, as file bytes."""


@dataclass(frozen=True)
class ImageDraws:
    """Random generator of one image, with the shape and precision of its samples."""

    generator: TorchGenerator
    h: int
    w: int
    channels: int
    dtype: Any

    def noise(self) -> Float32[np.ndarray, "h w c"]:
        """Draw the next noise for the latents, or for the VAE's posterior."""
        values = self.generator.randn((self.channels, self.h, self.w), self.dtype)
        return values.astype(self.dtype).astype(np.float32).transpose(1, 2, 0)


def plain(request: FluxRequest, files: Files, plan: Plan, draws: ImageDraws) -> Inputs:
    """Return a text-to-image request's `noise` [h, w, c]; with an image, as `from_image`."""
    return from_image(request, files, plan, draws) if "image" in files else {"noise": draws.noise()}


def from_image(request: FluxRequest, files: Files, plan: Plan, draws: ImageDraws) -> Inputs:
    """Return an image's inputs (`start_inputs`), `noise`, and the scales of both latents.

    Raises: RequestError: the image is missing or cannot be decoded.
    """
    size, shape = (request.width, request.height), (draws.h, draws.w, draws.channels)
    return {
        **start_inputs(_file(files, "image"), size, shape, draws.noise),
        "noise": draws.noise(),
        "clean_scale": plan.clean_scale[0],
        "noise_scale": plan.noise_scale[0],
    }


def fill(request: FluxRequest, files: Files, plan: Plan, draws: ImageDraws) -> Inputs:
    """Return the inputs of `from_image`, `masked_image` with noise, and `mask` [h, w, pixels].

    The mask has the pixels of each latent as channels. White pixels are regenerated, and are grey
    in the masked image.

    Source: diffusers pipeline_flux_fill.py, FluxFillPipeline.prepare_mask_latents.
    """
    inputs = from_image(request, files, plan, draws)
    mask = _mask(request, files)
    return inputs | {
        "masked_image": inputs["image"] * (1 - mask[..., None]),
        "masked_image_noise": draws.noise(),
        "mask": by_latent(mask, draws.h, draws.w),
    }


def control(request: FluxRequest, files: Files, plan: Plan, draws: ImageDraws) -> Inputs:
    """Return `control_image` [height, width, 3], its noise [h, w, c], and `noise`.

    Raises: RequestError: the image is missing or cannot be decoded.
    """
    return {
        "control_image": _pixels(request, files, "control_image"),
        "control_image_noise": draws.noise(),
        "noise": draws.noise(),
    }


def with_reference(
    request: FluxRequest, files: Files, plan: Plan, draws: ImageDraws, side_px: int = SIDE_PX
) -> Inputs:
    """Return `noise`; with an image also `reference` [rows, columns, 3], at a separate size.

    Args:
        side_px: side of a square reference.

    Raises: RequestError: the image cannot be decoded or is too small.
    """
    inputs = {"noise": draws.noise()}
    if "image" in files:
        multiple = 2 * request.height // draws.h
        inputs["reference"] = read_reference(files["image"], multiple, "image", side_px)
    return inputs


def by_latent(
    mask: Float32[np.ndarray, "height width"], h: int, w: int
) -> Float32[np.ndarray, "h w pixels"]:
    """Return a mask's pixels as channels of their latent, row by row."""
    height, width = mask.shape
    squares = mask.reshape(h, height // h, w, width // w).transpose(0, 2, 1, 3)
    return squares.reshape(h, w, -1)


def _pixels(request: FluxRequest, files: Files, field: str) -> np.ndarray:
    return read_image(_file(files, field), request.width, request.height, field)


def _mask(request: FluxRequest, files: Files) -> Float32[np.ndarray, "height width"]:
    return read_mask(_file(files, "mask_image"), request.width, request.height)


def _file(files: Files, field: str) -> bytes:
    """Return the bytes of an image in the request. Raises: RequestError: the image is missing."""
    if field not in files:
        raise RequestError(field, "is needed: this model generates from it")
    return files[field]
