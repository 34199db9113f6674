"""First latents of images: noise, or an input image plus noise, with an optional mask."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.images import read_image, read_mask
from models.interface.token_buckets import EXTENT, padded_to
from models.sampling.base import Plan
from models.sampling.shrunk_noise import ShrunkGenerator
from models.sampling.torch_rng import TorchGenerator
from models.spec.request import Request

NPY = b"\x93NUMPY"
"""First bytes of a latents file."""


def latents_file(latents: Float[np.ndarray, ...]) -> bytes:
    """Serialize clean latents to a file, which can replace an input image."""
    file = io.BytesIO()
    np.save(file, latents, allow_pickle=False)
    return file.getvalue()


def read_latents(data: bytes) -> Float[np.ndarray, ...]:
    """Read the latents of `latents_file`."""
    latents: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return latents


def resized(
    latents: Float[np.ndarray, "from_h from_w c"], h: int, w: int
) -> Float[np.ndarray, "h w c"]:
    """Resize latents, bilinearly between the centres of pixels and without antialiasing.

    Source: AUTOMATIC1111's hires fix with its upscaler "Latent": torch's interpolate, `bilinear`.
    """
    for axis, length in enumerate((h, w)):
        size = latents.shape[axis]
        positions = np.clip((np.arange(length) + 0.5) * size / length - 0.5, 0, size - 1)
        below = positions.astype(int)
        share = (positions - below).astype(np.float32).reshape(-1, *(1,) * (2 - axis))
        above = np.minimum(below + 1, size - 1)
        first, second = (latents.take(index, axis) for index in (below, above))
        latents = first * (1 - share) + second * share
    return latents


def start_inputs(
    data: bytes,
    size: tuple[int, int],
    shape: tuple[int, int, int],
    draw: Callable[[], Float[np.ndarray, "h w c"]],
) -> dict[str, np.ndarray]:
    """Return the inputs for the initial image: `image` and its noise, or `image_latents`.

    Args:
        data: an image file, or a latents file (`latents_file`) of any size, even one pixel.
        size: width and height, in pixels.
        shape: of the latents: [h, w, c].
        draw: draws the noise of the VAE's posterior; not called for latents.

    Raises: RequestError: the image cannot be read.

    Source: diffusers pipeline_stable_diffusion_xl_img2img.py, prepare_latents, for latents.
    """
    if not data.startswith(NPY):
        return {"image": read_image(data, *size), "image_noise": draw()}
    latents = read_latents(data)
    return {"image_latents": np.broadcast_to(resized(latents, *shape[:2]), shape)}


def clean_latents(inputs: Mapping[str, Any], encode: Callable[[Array, Array], Any]) -> Any:
    """Return the initial image's latents [h, w, c]; None: no initial image.

    Args:
        inputs: from `start_inputs`.
        encode: image and noise → latents.
    """
    if "image_latents" in inputs:
        return inputs["image_latents"]
    return encode(inputs["image"], inputs["image_noise"]) if "image" in inputs else None


def generator_of(request: Request) -> TorchGenerator:
    """Return the generator of an image's noise.

    Steps at a smaller size average the full image's noise, which preserves the composition of that
    seed.
    """
    part, size = request.progressive, (request.height, request.width)
    if part is None or (full_size := (part.height, part.width)) == size:
        return TorchGenerator(request.seed)
    return ShrunkGenerator(request.seed, full_size, size)


def draw_noise(
    generator: TorchGenerator, channels: int, grid: tuple[int, int], dtype: Any
) -> Float[np.ndarray, "h w c"]:
    """Draw standard normal latents channel by channel, rounded to a torch tensor's dtype."""
    drawn = generator.randn((channels, *grid), dtype).astype(dtype).astype(np.float32)
    return np.asarray(drawn.transpose(1, 2, 0))


def image_inputs(
    images: Mapping[str, bytes],
    size: tuple[int, int],
    shape: tuple[int, int, int],
    plan: Plan,
    draw: Callable[[], Float[np.ndarray, "h w c"]],
) -> dict[str, np.ndarray]:
    """Return the inputs of a request that starts from an image.

    They are the inputs of `start_inputs`, the latents' `noise`, and the scales of both. A mask is
    sampled at the top left pixel of each latent [h, w, 1].

    Args:
        size: width and height.
        shape: of the latents: [h, w, c].
        draw: draws the next noise of the request's generator.

    Raises: RequestError: a file cannot be read; names the field.
    """
    masked = {}
    if "mask_image" in images:
        mask = read_mask(images["mask_image"], *size)
        down = size[1] // shape[0]
        masked = {"mask": mask[::down, ::down, None]}
    return masked | {
        **start_inputs(images["image"], size, shape, draw),
        "noise": draw(),
        "clean_scale": plan.clean_scale[0],
        "noise_scale": plan.noise_scale[0],
    }


def mask_inputs(
    data: bytes, size: tuple[int, int], grid: tuple[int, int], plan: Plan
) -> dict[str, np.ndarray]:
    """Return the inputs of a mask over tokens: shares [rows, columns, 1], and the scales.

    The image's clean latents are `image_latents` for `first_latents`, of the tokens' shape.

    Args:
        size: width and height.
        grid: rows and columns of the tokens.

    Raises: RequestError: the mask cannot be read.

    Source: diffusers pipeline_flux2_klein_inpaint.py, prepare_mask_latents.
    """
    return {
        "mask": resized(read_mask(data, *size)[..., None], *grid),
        "clean_scale": plan.clean_scale[0],
        "noise_scale": plan.noise_scale[0],
    }


def first_latents(
    inputs: Mapping[str, Any],
    encode: Callable[[Array, Array], Float[Array, "h w c"]],
    pack: Callable[[Float[Array, "h w c"]], Float[Array, "tokens patch"]],
) -> dict[str, Array]:
    """Return the leaves of a row for its start.

    `latents`, and with a mask `mask`, `clean` and `noise`, each [tokens, patch].

    Args:
        inputs: from `image_inputs`, or `noise` alone; in a token bucket, packed and padded noise.
        encode: an image's pixels and noise → latents.
    """
    noise = inputs["noise"] if EXTENT in inputs else pack(inputs["noise"])
    start = clean_latents(inputs, encode)
    if start is None:
        return {"latents": noise}
    clean = padded_to(len(noise), pack(start))
    latents = inputs["noise_scale"] * noise + inputs["clean_scale"] * clean
    if "mask" not in inputs:
        return {"latents": latents}
    mask = padded_to(len(noise), pack(jnp.broadcast_to(inputs["mask"], start.shape)))
    return {"latents": latents, "mask": mask, "clean": clean, "noise": noise}
