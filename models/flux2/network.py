"""FLUX.2 transformer: predicts the velocity of packed latents from text and time.

Double blocks and outer layers are Flux's. In contrast to Flux, all blocks of a kind share one
modulation, layers have no biases, and feed-forwards are gated.

Source: Black Forest Labs, FLUX.2 (src/flux2/model.py), in the parametrisation of diffusers'
Flux2Transformer2DModel; pipeline_flux2_klein.py for the positions (its _prepare_…_ids). Blocks are
stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.flux2.config import AXES, Flux2Config
from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.double_stream import StreamShape
from models.nn.blocks.feed_forward import GatedMiddle, SwiGlu
from models.nn.blocks.joint_transformer import (
    OF_OUTPUT,
    OF_SINGLE,
    OF_STREAM,
    JointTransformer,
    Modulations,
)
from models.nn.blocks.single_stream import SingleBlock
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import Modulation
from models.nn.layers.parameterised import Kinds
from models.nn.layers.positions import grid_ids
from models.nn.layers.row_grids import RowGrids
from models.nn.layers.step_cache import CachedStep
from models.vae.references import Grid

BETWEEN_IMAGES = 10
"""Time position of the first reference, and distance between references; the output
image is at 0."""


class TimeConditions(nnx.Module):
    """Embedding of time and guidance to modulations, which all blocks of a kind share."""

    def __init__(self, config: Flux2Config, **kinds: Unpack[Kinds]) -> None:
        vectors = partial(Modulation, config.width, use_bias=False, **kinds)
        self.features = config.timestep_guidance_channels
        scalar = partial(ConditionMLP, self.features, config.width, use_bias=False, **kinds)
        self.time_in = scalar()
        self.guidance_in = scalar() if config.guidance_embeds else None
        self.image_modulation, self.text_modulation = (vectors(OF_STREAM) for _ in range(2))
        self.single_modulation = vectors(OF_SINGLE)
        self.out_modulation = vectors(OF_OUTPUT)

    def __call__(
        self, timestep: Float[Array, " batch"], guidance: Float[Array, " batch"] | None = None
    ) -> Modulations:
        """Compute all modulations, in the dtype of the weights.

        Args:
            timestep: 1000 · sigma, 0 to 1000, float32.
            guidance: guidance scale, float32; required by networks with a guidance embedding.
        """
        vector = self.time_in(sinusoid(timestep, self.features))
        if self.guidance_in is not None:
            if guidance is None:
                raise ValueError("this transformer has a guidance embedding: give it a guidance")
            vector = vector + self.guidance_in(sinusoid(1000 * guidance, self.features))
        shared = self.image_modulation, self.text_modulation, self.single_modulation
        image, text, single = (modulation(vector)[:, None] for modulation in shared)
        return Modulations(image, text, single, self.out_modulation(vector))


class Flux2Transformer(JointTransformer):
    """Denoising transformer of FLUX.2: packed latents, text and time to velocity."""

    def __init__(
        self,
        config: Flux2Config,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        width, heads = config.width, config.num_attention_heads
        feed_forward = partial(SwiGlu, width, config.inner)
        super().__init__(
            config,
            StreamShape(width, heads, feed_forward, use_bias=False, epsilon=config.eps),
            attention,
            TimeConditions,
            (partial(SingleBlock, GatedMiddle, config.inner), config.num_single_layers),
            theta=float(config.rope_theta),
            rngs=rngs,
            param_dtype=param_dtype,
        )

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        modulations: Modulations,
        grids: tuple[Grid, ...] | RowGrids,
        cache: CachedStep | None = None,
    ) -> Float[Array, "batch image_tokens channels"]:
        """Return the velocity of the latents, in the dtype of the weights.

        Args:
            modulations: output of `conditions` for the timestep.
            grids: token rows and columns of the output image, then of each reference; or those of
                padded rows.
            cache: state of earlier steps; may replace most blocks.
        """
        if isinstance(grids, RowGrids):
            ids: np.ndarray | RowGrids = grids._replace(after=1)
        else:
            ids = np.concatenate([image_ids(*grid, index) for index, grid in enumerate(grids)])
        text = text_ids(prompt_embeds.shape[1])
        return self.velocity(latents, prompt_embeds, modulations, ids, text, cache)


def text_ids(tokens: int) -> np.ndarray:
    """Return positions of text tokens, [tokens, 4]."""
    return np.pad(np.arange(tokens)[:, None], ((0, 0), (AXES - 1, 0)))


def image_ids(rows: int, columns: int, index: int = 0) -> np.ndarray:
    """Return positions of an image's tokens, [rows · columns, 4].

    Args:
        index: 0 for the output image, from 1 on for references.
    """
    return grid_ids(rows, columns, before=(BETWEEN_IMAGES * index,), after=(0,))
