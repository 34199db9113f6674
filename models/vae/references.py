"""Reference images, which a network reads as tokens after those of the generated image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from PIL import Image

from models.interface.images import open_image
from models.interface.pipeline import PyTree
from models.spec.request_images import listed_paths
from models.vae.patches import PATCH

IMAGE, REFERENCE_IMAGES = "image", "reference_images"
"""Request fields of the first reference and of further ones."""
INPUT = "reference."
"""Prefix of references among a request's inputs, before their index."""

Grid = tuple[int, int]
"""Rows and columns of an image's tokens."""


def reference_paths(images: Mapping[str, bytes]) -> list[str]:
    """Return the field paths of a request's references, in order."""
    return [*([IMAGE] if IMAGE in images else []), *listed_paths(images, REFERENCE_IMAGES)]


def open_references(images: Mapping[str, bytes]) -> dict[str, Image.Image]:
    """Open a request's references; return them by field path, in order.

    Raises: RequestError: an image that cannot be read.
    """
    return {path: open_image(images[path], path) for path in reference_paths(images)}


def inputs_of(references: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the `encode` inputs of a request's reference images."""
    return {f"{INPUT}{index}": pixels for index, pixels in enumerate(references)}


def reference_latents(
    inputs: Mapping[str, jax.Array],
    encode: Callable[[jax.Array], Float[Array, "h w c"]],
    pack: Callable[[Float[Array, "h w c"]], Float[Array, "tokens patch"]],
) -> dict[str, Any]:
    """Return the row's leaves of reference images: tokens, and latent shapes by index.

    Empty without references.
    """
    latents = {
        name.removeprefix(INPUT): encode(inputs[name])
        for name in sorted(inputs)
        if name.startswith(INPUT)
    }
    if not latents:
        return {}
    return {
        "references": jnp.concatenate([pack(image) for image in latents.values()]),
        "reference_grids": {index: as_grid(image) for index, image in latents.items()},
    }


def tokens_and_grids(
    rows: PyTree, patch: int = PATCH
) -> tuple[Float[Array, "batch image_tokens patch"], tuple[Grid, ...]]:
    """Return the image tokens that the network reads for rows of one size, and their grids.

    Args:
        patch: rows and columns of latents that one token packs.
    """
    tokens, grids = rows["latents"], [rows["grid"]]
    if "references" in rows:
        tokens = jnp.concatenate([tokens, rows["references"]], axis=1)
        grids += [rows["reference_grids"][index] for index in sorted(rows["reference_grids"])]
    return tokens, tuple((grid.shape[1] // patch, grid.shape[2] // patch) for grid in grids)


def as_grid(latents: Float[Array, "h w c"]) -> Float[Array, "h w nothing"]:
    """Return the shape of latents as an array without values, a leaf of a row."""
    return jnp.zeros((*latents.shape[:2], 0))
