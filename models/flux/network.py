"""Flux transformer: predicts the velocity of packed latents from text, time and guidance.

Source: Black Forest Labs, FLUX.1 (flux/model.py, flux/modules/layers.py), in the parametrisation of
diffusers' FluxTransformer2DModel. Blocks are stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.flux.config import FluxConfig
from models.flux.modulations import Conditions
from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.double_stream import StreamShape
from models.nn.blocks.feed_forward import GeluFeedForward, GeluMiddle
from models.nn.blocks.joint_transformer import JointTransformer
from models.nn.blocks.single_stream import SingleBlock

THETA = 10_000.0
"""Base of the RoPE frequencies; the same in every Flux.1."""


def shape_of(config: FluxConfig) -> StreamShape:
    """Return the shape of a Flux stream: width, heads and feed-forward."""
    feed_forward = partial(GeluFeedForward, config.width)
    return StreamShape(config.width, config.num_attention_heads, feed_forward)


def single_block(config: FluxConfig) -> Callable[..., SingleBlock]:
    """Return the constructor of Flux's single blocks, which takes a shape and an attention."""
    return partial(SingleBlock, GeluMiddle, 4 * config.width)


class FluxTransformer(JointTransformer):
    """Denoising transformer of Flux: packed latents and conditioning to velocity."""

    def __init__(
        self,
        config: FluxConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        super().__init__(
            config,
            shape_of(config),
            attention,
            Conditions,
            (single_block(config), config.num_single_layers),
            theta=THETA,
            out_channels=config.velocity,
            rngs=rngs,
            param_dtype=param_dtype,
        )

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        pooled_embeds: Float[Array, "batch pooled"],
        timestep: Float[Array, " batch"],
        guidance: Float[Array, " batch"] | None,
        image_ids: np.ndarray,
        text_ids: np.ndarray,
    ) -> Float[Array, "batch image_tokens velocity"]:
        """Compute the modulations from time, guidance and pooled text, then the velocity."""
        modulations = self.conditions(timestep, guidance, pooled_embeds)
        return self.velocity(latents, prompt_embeds, modulations, image_ids, text_ids)
