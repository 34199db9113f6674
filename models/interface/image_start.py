"""First latents of images: noise alone, or beneath it an image, of which a mask may keep a part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.images import read_image, read_mask
from models.sampling.base import Plan
from models.sampling.torch_rng import TorchGenerator


def draw_noise(
    generator: TorchGenerator, channels: int, grid: tuple[int, int], dtype: Any
) -> Float[np.ndarray, "h w c"]:
    """Draw standard normal latents channel by channel, as a torch tensor of that dtype holds."""
    drawn = generator.randn((channels, *grid), dtype).astype(dtype).astype(np.float32)
    return np.asarray(drawn.transpose(1, 2, 0))


def image_inputs(
    images: Mapping[str, bytes],
    size: tuple[int, int],
    plan: Plan,
    draw: Callable[[], Float[np.ndarray, "h w c"]],
    downsampling: int,
) -> dict[str, np.ndarray]:
    """Inputs of a request that begins with an image.

    `image`, its noise and then the latents' `noise`, and the scales of both latents; with a mask
    that, at the top left pixel of each latent [h, w, 1].

    Args:
        size: width and height.
        draw: the next noise of the request's generator.
        downsampling: pixels a latent, along each side.

    Raises: RequestError: a file cannot be read; names the field.
    """
    masked = {}
    if "mask_image" in images:
        mask = read_mask(images["mask_image"], *size)
        masked = {"mask": mask[::downsampling, ::downsampling, None]}
    return masked | {
        "image": read_image(images["image"], *size),
        "image_noise": draw(),
        "noise": draw(),
        "clean_scale": plan.clean_scale[0],
        "noise_scale": plan.noise_scale[0],
    }


def first_latents(
    inputs: Mapping[str, Any],
    encode: Callable[[Array, Array], Float[Array, "h w c"]],
    pack: Callable[[Float[Array, "h w c"]], Float[Array, "tokens patch"]],
) -> dict[str, Array]:
    """Part of a row with its `latents`; with a mask `mask`, `clean` and `noise` [tokens, patch].

    Args:
        inputs: those of `image_inputs`, or `noise` alone.
        encode: return an image's latents, of its pixels and noise.
    """
    noise = pack(inputs["noise"])
    if "image" not in inputs:
        return {"latents": noise}
    clean = pack(encode(inputs["image"], inputs["image_noise"]))
    latents = inputs["noise_scale"] * noise + inputs["clean_scale"] * clean
    if "mask" not in inputs:
        return {"latents": latents}
    mask = jnp.broadcast_to(inputs["mask"], inputs["noise"].shape)
    return {"latents": latents, "mask": pack(mask), "clean": clean, "noise": noise}
