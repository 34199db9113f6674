"""Guidance of LTX-2: combines predictions of the prompt with degraded or negative predictions.

Each stream has separate scales, which apply to estimates of the clean latents.

Source: diffusers pipeline_ltx2.py, __call__; Hyung et al. 2024 (STG), section 3, for the prediction
without a block's self-attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.pipeline import PyTree
from models.ltx.network import Perturbations
from models.sampling.guidance import rescale

Tokens = Float[Array, "batch tokens channels"]

PERTURBATIONS = ("skip_self", "skip_cross")
"""Fields of `Prediction`, and leaves of a row whose guidance uses them."""


class Prediction(NamedTuple):
    """One prediction of a guided step: its prompt, and its perturbation."""

    prompt: int = 0
    skip_self: bool = False
    """Whether one block skips self-attention in both streams."""
    skip_cross: bool = False
    """Whether attention between video and audio is disabled."""

    def weights(self, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return the weights of guidance away from this prediction, for video and audio."""
        if self.skip_self:
            return values["stg_scale"], values["stg_scale"]
        if self.skip_cross:
            return values["modality_scale"] - 1, values["modality_scale"] - 1
        return values["guidance_scale"] - 1, values["audio_guidance_scale"] - 1


def predictions_of(rows: PyTree, guided: bool) -> list[Prediction]:
    """Return a step's predictions: the prompt's, then those that guidance moves away from."""
    if not guided:
        return [Prediction()]
    predictions = [Prediction(prompt) for prompt in range(rows["prompt_embeds"].shape[1])]
    return [*predictions, *(Prediction(**{name: True}) for name in PERTURBATIONS if name in rows)]


def perturbations(
    predictions: Sequence[Prediction], batch: int, block: int
) -> Perturbations | None:
    """Return the perturbations of all predictions in a batch; None without any.

    Args:
        batch: number of rows; predictions of a row are adjacent.
        block: block that skips self-attention.
    """
    skips_self, skips_cross = (
        np.tile([getattr(prediction, name) for prediction in predictions], batch)
        for name in PERTURBATIONS
    )
    if not (skips_self | skips_cross).any():
        return None
    blocks = (block,) if skips_self.any() else ()
    return Perturbations(blocks, jnp.asarray(skips_self), jnp.asarray(skips_cross))


def guided(
    latents: Tokens,
    velocities: Float[Array, "batch predictions tokens channels"],
    sigma: Float[Array, " batch"],
    weights: Sequence[Float[Array, " batch"]],
    share: Float[Array, " batch"],
) -> Tokens:
    """Combine the predictions of one stream into a velocity, float32.

    Args:
        weights: weights of all predictions except the first.
        share: fraction of the result that is rescaled to the first prediction's standard deviation.
    """
    if not weights:
        return velocities[:, 0]
    level = sigma[:, None, None]
    clean = latents[:, None] - level[:, None] * velocities
    positive = clean[:, 0]
    estimate = positive
    for index, weight in enumerate(weights, 1):
        estimate = estimate + weight[:, None, None] * (positive - clean[:, index])
    return (latents - rescale(estimate, positive, share)) / level
