"""Host-side inputs of an image: first noise, and the images of a request as the VAE will read them.

A seed gives diffusers' image only if every number is drawn where diffusers draws it: one generator
serves the samples of the VAE's posterior and the first noise, in the order of the functions here.
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
from models.interface.pipeline import RequestError
from models.sampling.base import Plan
from models.sampling.torch_rng import TorchGenerator

Inputs = dict[str, np.ndarray]
Files = Mapping[str, bytes]
"""Images of a request by field, as file bytes."""


@dataclass(frozen=True)
class ImageDraws:
    """Image's generator, and the shape and precision it draws in."""

    generator: TorchGenerator
    h: int
    w: int
    channels: int
    dtype: Any

    def noise(self) -> Float32[np.ndarray, "h w c"]:
        """Draw the next noise of the latents, or of the VAE's posterior."""
        values = self.generator.randn((self.channels, self.h, self.w), self.dtype)
        return values.astype(self.dtype).astype(np.float32).transpose(1, 2, 0)


def plain(request: FluxRequest, files: Files, plan: Plan, draws: ImageDraws) -> Inputs:
    """`noise` [h, w, c]; with an image that and its scales, as `from_image`."""
    return from_image(request, files, plan, draws) if "image" in files else {"noise": draws.noise()}


def from_image(request: FluxRequest, files: Files, plan: Plan, draws: ImageDraws) -> Inputs:
    """An image's inputs (`start_inputs`), then `noise`; scales of both latents.

    Raises: RequestError: the image is missing or cannot be read.
    """
    size, shape = (request.width, request.height), (draws.h, draws.w, draws.channels)
    return {
        **start_inputs(_file(files, "image"), size, shape, draws.noise),
        "noise": draws.noise(),
        "clean_scale": plan.clean_scale[0],
        "noise_scale": plan.noise_scale[0],
    }


def fill(request: FluxRequest, files: Files, plan: Plan, draws: ImageDraws) -> Inputs:
    """The same, then `masked_image` with its noise, and `mask` [h, w, pixels of a latent].

    White pixels of the mask are drawn anew; the masked image is grey there.

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
    """`control_image` [height, width, 3] and its noise [h, w, c], then `noise`.

    Raises: RequestError: the image is missing or cannot be read.
    """
    return {
        "control_image": _pixels(request, files, "control_image"),
        "control_image_noise": draws.noise(),
        "noise": draws.noise(),
    }


def with_reference(
    request: FluxRequest, files: Files, plan: Plan, draws: ImageDraws, side_px: int = SIDE_PX
) -> Inputs:
    """`noise`; with an image `reference` [rows, columns, 3], at a size of its own.

    Args:
        side_px: of a square reference.

    Raises: RequestError: the image cannot be read or is too small.
    """
    inputs = {"noise": draws.noise()}
    if "image" in files:
        multiple = 2 * request.height // draws.h
        inputs["reference"] = read_reference(files["image"], multiple, "image", side_px)
    return inputs


def by_latent(
    mask: Float32[np.ndarray, "height width"], h: int, w: int
) -> Float32[np.ndarray, "h w pixels"]:
    """A mask's pixels as channels of the latent that they lie under, row by row."""
    height, width = mask.shape
    squares = mask.reshape(h, height // h, w, width // w).transpose(0, 2, 1, 3)
    return squares.reshape(h, w, -1)


def _pixels(request: FluxRequest, files: Files, field: str) -> np.ndarray:
    return read_image(_file(files, field), request.width, request.height, field)


def _mask(request: FluxRequest, files: Files) -> Float32[np.ndarray, "height width"]:
    return read_mask(_file(files, "mask_image"), request.width, request.height)


def _file(files: Files, field: str) -> bytes:
    """Raises: RequestError: there is none."""
    if field not in files:
        raise RequestError(field, "is needed: this model draws from it")
    return files[field]
