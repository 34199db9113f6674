"""Image conditioning of Flux on the device, as additional channels or additional tokens.

A row may have `channels` [tokens, further], concatenated to the channels of its latents. It may
have `reference` [tokens, channels], appended to the tokens of its latents. `reference_grid` [h, w]
is an empty array with the shape of the reference's latents. A row's leaves depend only on its
request's inputs. Padded rows (models/interface/token_buckets.py) have zeros after their tokens.
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

EncodeInput = Callable[[str], Float[Array, "h w c"]]
"""Function from the name of an input image to its latents, normalized for the network."""

REFERENCE = 1
"""Index position of a reference's tokens; that of the output image is 0."""


def image_leaves(
    inputs: Mapping[str, Array], encoded: EncodeInput, tokens: int
) -> dict[str, Array]:
    """Return the leaves of a row that hold its image conditioning.

    Args:
        tokens: number of tokens of the latents, with padding.
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
    """Return the network's image tokens, and their positions [image_tokens, 3].

    Args:
        most: maximum rows or columns of tokens.
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
