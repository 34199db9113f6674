"""The FLUX.2 transformer: velocity of packed latents from text and time.

Its double blocks and what is around all blocks are Flux's; here one modulation serves all blocks of
a kind, no layer has a bias, and feed-forwards are gated.

Source: Black Forest Labs, FLUX.2 (src/flux2/model.py), in the parametrisation of diffusers'
Flux2Transformer2DModel. Blocks are stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.flux2.config import Flux2Config
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
from models.nn.blocks.joint_transformer import (
    OF_OUTPUT,
    OF_SINGLE,
    OF_STREAM,
    Block,
    JointTransformer,
    Modulations,
    stack_any,
)
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import Modulation, modulate
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, activated, linear, of_joined
from models.nn.layers.rope import apply_rope
from models.parallel.placement import split


class SwiGlu(nnx.Module):
    """Gated feed-forward without biases. Source: Shazeer 2020, eq. 6."""

    def __init__(self, width: int, inner: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        dense = partial(linear, use_bias=False, rngs=rngs, param_dtype=param_dtype)
        self.gate, self.up = (dense(width, inner, ("embed", "mlp")) for _ in range(2))
        self.down = dense(inner, width, ("mlp", "embed"))

    def __call__(self, x: Tokens) -> Tokens:
        """Apply the layers to each token."""
        return self.down(activated(self.gate, x, jax.nn.silu) * self.up(x))


class ParallelBlock(nnx.Module):
    """Attention and gated feed-forward side by side on one stream of text and image.

    Source: Dehghani et al. 2023 (ViT-22B), section 2.1.
    """

    def __init__(
        self,
        inner: int,
        shape: StreamShape,
        attention: TokenAttention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        dense = partial(linear, use_bias=False, rngs=rngs, param_dtype=param_dtype)
        width = shape.width
        self.epsilon, self.attention = shape.epsilon, attention
        self.heads = JointHeads(shape, rngs=rngs, param_dtype=param_dtype)
        self.gate, self.up = (dense(width, inner, ("embed", "mlp")) for _ in range(2))
        self.down = dense(width + inner, width, ("mlp", "embed"))

    def __call__(self, x: Tokens, vectors: Vectors, positions: Positions) -> Tokens:
        """Attend and feed forward side by side, over the joined streams."""
        shift, scale, gate = one_by_one(vectors)
        normed = modulate(x, shift, scale, self.epsilon)
        q, k, v = self.heads(normed)
        q, k = (apply_rope(part, positions.rope) for part in (q, k))
        attended = self.attention(q, k, v, keys=positions.keys)
        wide = activated(self.gate, normed, jax.nn.silu) * self.up(normed)
        found = of_joined(self.down, [attended, wide])
        return split(fit_float16(x + gate * found), *AXES)


class TimeConditions(nnx.Module):
    """Timestep → modulations, which all blocks of a kind share."""

    def __init__(self, config: Flux2Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        vectors = partial(Modulation, config.width, use_bias=False, **kinds)
        self.features = config.timestep_guidance_channels
        self.time_in = ConditionMLP(self.features, config.width, use_bias=False, **kinds)
        self.image_modulation, self.text_modulation = (vectors(OF_STREAM) for _ in range(2))
        self.single_modulation = vectors(OF_SINGLE)
        self.out_modulation = vectors(OF_OUTPUT)

    def __call__(self, timestep: Float[Array, " batch"]) -> Modulations:
        """Compute all modulations, in the dtype of the weights.

        Args:
            timestep: 1000 · sigma, 0 to 1000, float32.
        """
        vector = self.time_in(sinusoid(timestep, self.features))
        image, text, single = (
            modulation(vector)[:, None]
            for modulation in (
                self.image_modulation,
                self.text_modulation,
                self.single_modulation,
            )
        )
        return Modulations(image, text, single, self.out_modulation(vector))


class Flux2Transformer(JointTransformer):
    """Packed latents, text and time to velocity."""

    def __init__(
        self,
        config: Flux2Config,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        width, inner = config.width, config.inner
        feed_forward = partial(SwiGlu, width, inner)
        shape = StreamShape(
            width, config.num_attention_heads, feed_forward, use_bias=False, epsilon=config.eps
        )

        def block(kind: Callable[..., Block]) -> Callable[[nnx.Rngs], Block]:
            return lambda rngs: kind(shape, attention, rngs=rngs, param_dtype=param_dtype)

        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        dense = partial(linear, use_bias=False, **kinds)
        self.config, self.epsilon = config, config.eps
        self.axes_dims, self.theta = config.axes_dims_rope, float(config.rope_theta)
        self.latents_in = dense(config.in_channels, width, (None, "embed"))
        self.text_in = dense(config.joint_attention_dim, width, (None, "embed"))
        self.conditions = TimeConditions(config, **kinds)
        self.double_blocks = stack_any(block(DoubleBlock), config.num_layers, rngs)
        single = block(partial(ParallelBlock, inner))
        self.single_blocks = stack_any(single, config.num_single_layers, rngs)
        self.latents_out = dense(width, config.in_channels, ("embed", None))

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        timestep: Float[Array, " batch"],
        image_ids: np.ndarray,
        text_ids: np.ndarray,
    ) -> Float[Array, "batch image_tokens channels"]:
        """Compute `velocity` with the modulations of `conditions`."""
        modulations = self.conditions(timestep)
        return self.velocity(latents, prompt_embeds, modulations, image_ids, text_ids)
