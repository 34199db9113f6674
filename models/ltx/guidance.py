"""Guidance of LTX-2: the prompt's answer, away from answers that lack something.

Each stream goes by its own scales, on estimates of the clean latents.

Source: diffusers pipeline_ltx2.py, __call__; Hyung et al. 2024 (STG), section 3, for the answer
without a block's self-attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.pipeline import PyTree
from models.ltx.network import Perturbed
from models.sampling.guidance import rescale

Tokens = Float[Array, "batch tokens channels"]


class Answer(NamedTuple):
    """Kind of answer that the network is asked for."""

    prompt: int = 0
    alone: bool = False
    """True if a block's streams do not attend to themselves."""
    apart: bool = False
    """True if the streams do not attend to each other."""

    def weights(self, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return the weights of the way from this answer to the prompt's, of video and audio."""
        if self.alone:
            return values["stg_scale"], values["stg_scale"]
        if self.apart:
            return values["modality_scale"] - 1, values["modality_scale"] - 1
        return values["guidance_scale"] - 1, values["audio_guidance_scale"] - 1


def answers_of(rows: PyTree, guided: bool) -> list[Answer]:
    """Return what a step asks: the prompt's answer, then those that rows are guided away from."""
    if not guided:
        return [Answer()]
    answers = [Answer(prompt) for prompt in range(rows["prompt_embeds"].shape[1])]
    return [*answers, *(Answer(**{name: True}) for name in ("alone", "apart") if name in rows)]


def perturbed(answers: Sequence[Answer], batch: int, block: int) -> Perturbed | None:
    """Return which of all rows' answers lack something; None: none does.

    Args:
        batch: rows; their answers lie side by side.
        block: of the answers without self-attention.
    """
    alone, apart = (
        np.tile([getattr(one, name) for one in answers], batch) for name in ("alone", "apart")
    )
    if not (alone | apart).any():
        return None
    blocks = (block,) if alone.any() else ()
    return Perturbed(blocks, jnp.asarray(alone), jnp.asarray(apart))


def guided(
    latents: Tokens,
    velocities: Float[Array, "batch answers tokens channels"],
    sigma: Float[Array, " batch"],
    weights: Sequence[Float[Array, " batch"]],
    share: Float[Array, " batch"],
) -> Tokens:
    """Return the velocity of one stream, float32.

    Args:
        weights: of all answers but the first.
        share: of the result that is rescaled to the deviation of the first answer.
    """
    if not weights:
        return velocities[:, 0]
    level = sigma[:, None, None]
    clean = latents[:, None] - level[:, None] * velocities
    positive = clean[:, 0]
    found = positive
    for index, weight in enumerate(weights, 1):
        found = found + weight[:, None, None] * (positive - clean[:, index])
    return (latents - rescale(found, positive, share)) / level
