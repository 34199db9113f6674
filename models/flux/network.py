"""The Flux transformer: velocity of packed latents from text, time and guidance.

Source: Black Forest Labs, FLUX.1 (flux/model.py, flux/modules/layers.py), in the parametrisation
of diffusers' FluxTransformer2DModel. Blocks are stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.flux.conditioning import Conditions
from models.flux.config import FluxConfig
from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.double_stream import (
    AXES,
    DoubleBlock,
    JointHeads,
    StreamShape,
    Tokens,
    Vectors,
    fit_float16,
    one_by_one,
)
from models.nn.blocks.feed_forward import GeluFeedForward
from models.nn.blocks.joint_transformer import Block, JointTransformer, stack_any
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.norms import modulate
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, activated, linear, of_joined
from models.nn.layers.rope import apply_rope
from models.parallel.placement import split

THETA = 10_000.0
"""Base of the positions' frequencies; fixed in every Flux.1."""


class SingleBlock(nnx.Module):
    """Attention and feed-forward side by side on one stream of text and image."""

    def __init__(
        self,
        shape: StreamShape,
        attention: TokenAttention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        width = shape.width
        self.heads = JointHeads(shape, rngs=rngs, param_dtype=param_dtype)
        self.up = linear(width, 4 * width, ("embed", "mlp"), rngs=rngs, param_dtype=param_dtype)
        self.down = linear(5 * width, width, ("mlp", "embed"), rngs=rngs, param_dtype=param_dtype)
        self.attention = attention

    def __call__(self, x: Tokens, vectors: Vectors, positions: Positions) -> Tokens:
        """Attend and feed forward side by side, over the joined streams."""
        shift, scale, gate = one_by_one(vectors)
        normed = modulate(x, shift, scale)
        q, k, v = self.heads(normed)
        q, k = (apply_rope(x, positions.rope) for x in (q, k))
        attended = self.attention(q, k, v, keys=positions.keys)
        wide = activated(self.up, normed, tanh_gelu)
        found = of_joined(self.down, [attended, wide])
        return split(fit_float16(x + gate * found), *AXES)


class FluxTransformer(JointTransformer):
    """Packed latents and conditions to velocity."""

    def __init__(
        self,
        config: FluxConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        width, kinds = config.width, Kinds(rngs=rngs, param_dtype=param_dtype)
        shape = StreamShape(width, config.num_attention_heads, partial(GeluFeedForward, width))

        def block(kind: Callable[..., Block]) -> Callable[[nnx.Rngs], Block]:
            return lambda rngs: kind(shape, attention, rngs=rngs, param_dtype=param_dtype)

        self.config, self.epsilon = config, shape.epsilon
        self.axes_dims, self.theta = config.axes_dims_rope, THETA
        self.latents_in = linear(config.in_channels, width, (None, "embed"), **kinds)
        self.text_in = linear(config.joint_attention_dim, width, (None, "embed"), **kinds)
        self.conditions = Conditions(config, **kinds)
        self.double_blocks = stack_any(block(DoubleBlock), config.num_layers, rngs)
        self.single_blocks = stack_any(block(SingleBlock), config.num_single_layers, rngs)
        self.latents_out = linear(width, config.velocity, ("embed", None), **kinds)

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
        """Compute `velocity` with the modulations of `conditions`."""
        modulations = self.conditions(timestep, guidance, pooled_embeds)
        return self.velocity(latents, prompt_embeds, modulations, image_ids, text_ids)
