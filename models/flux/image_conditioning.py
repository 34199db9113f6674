"""Images of a request as the network sees them beside the latents, on the device.

A row may have `channels` [tokens, further], joined to the channels of its latents; and `reference`
[tokens, channels], tokens behind those of its latents, with `reference_grid` [h, w], the shape of
its latents as an array without values. What a row has is decided by its request's inputs alone.
Tokens of rows that are padded (models/interface/token_buckets.py) have zeros behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.flux.latents import image_ids
from models.interface.pipeline import PyTree
from models.interface.token_buckets import EXTENT, padded_to
from models.nn.layers.row_grids import RowGrids
from models.vae.patches import pack

Encoded = Callable[[str], Float[Array, "h w c"]]
"""An image among the inputs, by name → its latents, as the network has them."""

REFERENCE = 1
"""First position of a reference's tokens; the image's own is 0."""


def seen_beside(inputs: Mapping[str, Array], encoded: Encoded, tokens: int) -> dict[str, Array]:
    """Return the leaves of a row that hold its images.

    Args:
        tokens: of its latents, with padding.
    """
    if "mask" in inputs:
        masked = pack(encoded("masked_image"))
        channels = jnp.concatenate([masked, pack(inputs["mask"])], axis=-1)
        return {"channels": padded_to(tokens, channels)}
    if "control_image" in inputs:
        return {"channels": padded_to(tokens, pack(encoded("control_image")))}
    if "reference" in inputs:
        latents = encoded("reference")
        return {"reference": pack(latents), "reference_grid": jnp.zeros((*latents.shape[:2], 0))}
    return {}


def image_tokens(
    rows: PyTree, most: int
) -> tuple[Float[Array, "batch image_tokens channels"], np.ndarray | RowGrids]:
    """Return what the network reads of rows, and its positions [image_tokens, 3].

    Args:
        most: rows or columns of tokens that a row may have.
    """
    tokens = rows["latents"]
    if "channels" in rows:
        tokens = jnp.concatenate([tokens, rows["channels"]], axis=-1)
    if EXTENT in rows:
        return tokens, RowGrids(rows[EXTENT], tokens.shape[1], most)
    ids = image_ids(*rows["grid"].shape[1:3])
    if "reference" in rows:
        tokens = jnp.concatenate([tokens, rows["reference"]], axis=1)
        h, w = rows["reference_grid"].shape[1:3]
        more = image_ids(h, w, index=REFERENCE)
        ids = np.concatenate([ids, more])
    return tokens, ids
