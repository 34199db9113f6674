"""Images of a request as the network sees them beside the latents, on the device.

A row may have `channels` [tokens, further], joined to the channels of its latents. Which of these a
row has is decided by the inputs of its request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.flux.latents import image_ids, pack
from models.interface.pipeline import PyTree

Sampled = Callable[[str], Float[Array, "h w c"]]
"""An image among the inputs, by name → its latents, as the network has them."""


def seen_beside(inputs: Mapping[str, Array], sampled: Sampled) -> dict[str, Array]:
    """Return the leaves of a row that hold its images."""
    if "mask" in inputs:
        masked = pack(sampled("masked_image"))
        return {"channels": jnp.concatenate([masked, pack(inputs["mask"])], axis=-1)}
    return {}


def image_tokens(
    rows: PyTree,
) -> tuple[Float[Array, "batch image_tokens channels"], np.ndarray]:
    """Return what the network reads of rows, and its positions [image_tokens, 3]."""
    h, w = rows["grid"].shape[1:3]
    tokens = rows["latents"]
    if "channels" in rows:
        tokens = jnp.concatenate([tokens, rows["channels"]], axis=-1)
    return tokens, image_ids(h, w)
