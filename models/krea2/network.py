"""Krea 2 transformer: predicts the velocity of packed latents from a caption and time.

Text and image share one stream. The text is a stack of hidden states of several layers of the text
encoder, which small transformers reduce to one vector per token. All blocks share the modulation by
time, to which each adds learned vectors.

Source: diffusers' Krea2Transformer2DModel. Blocks are stacked and scanned
(models/nn/layers/scanned.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple, Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from models.krea2.config import Krea2Config
from models.nn.attention.attention import TokenAttention, attention, token_attention
from models.nn.blocks.double_stream import (
    AXES,
    ByHead,
    ImageTokens,
    Tokens,
    Vectors,
    fit_float16,
    joined_positions,
    keys_of_rows,
    padded,
    split_vectors,
)
from models.nn.blocks.gated_attention import BlockShape, PreNormBlock
from models.nn.layers import padded_tokens
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.embeddings import ConditionMLP, TextInput, sinusoid
from models.nn.layers.norms import OffsetRMSNorm, linear_with_exact_activations
from models.nn.layers.padded_tokens import Positions, cut_last
from models.nn.layers.parameterised import Kinds, linear
from models.nn.layers.positions import grid_ids
from models.nn.layers.scanned import run, stack, stack_any
from models.nn.layers.step_cache import CachedStep
from models.parallel.placement import split
from models.vae.references import Grid

VECTORS, OUT_VECTORS = 6, 2
"""Modulation vectors of a block: scale, shift and gate of the attention, then of the feed-forward;
and of the last norm: scale and shift."""


class SharedModulations(NamedTuple):
    """Modulations by time: vectors that all blocks share, and the vector of the last norm."""

    blocks: Float[Array, "times vectors width"]
    out: Float[Array, "times width"]


class TextFusion(nnx.Module):
    """Transformers that reduce several hidden states of each text token to one vector."""

    def __init__(self, config: Krea2Config, **kinds: Unpack[Kinds]) -> None:
        block = partial(
            PreNormBlock,
            BlockShape(
                config.text_hidden_dim,
                config.text_num_attention_heads,
                config.text_num_key_value_heads,
                config.text_intermediate_size,
                config.norm_eps,
            ),
        )
        self.states = config.num_text_layers
        self.layer_blocks = stack_any(block, config.num_layerwise_text_blocks, **kinds)
        self.projector = linear(self.states, 1, (None, None), use_bias=False, **kinds)
        self.token_blocks = stack_any(block, config.num_refiner_text_blocks, **kinds)

    def __call__(
        self,
        captions: Float[Array, "batch tokens features"],
        keys: Bool[Array, "batch tokens"],
    ) -> Float[Array, "batch tokens width"]:
        """Attend over the states of each token, join them, and attend over the tokens.

        Args:
            captions: the states of each token, concatenated.
            keys: tokens that are not padding.
        """
        batch, tokens, _ = captions.shape

        def over_states(q: ByHead, k: ByHead, v: ByHead) -> ByHead:
            """Attend within each token; states of all tokens are on one axis."""
            by_token = batch * tokens, self.states, *q.shape[2:]
            q, k, v = (x.reshape(by_token) for x in (q, k, v))
            return attention(q, k, v).reshape(batch, tokens * self.states, *q.shape[2:])

        def over_tokens(q: ByHead, k: ByHead, v: ByHead) -> ByHead:
            return attention(q, k, v, keys=keys)

        states = captions.reshape(batch, tokens * self.states, -1)
        states = run(self.layer_blocks, states, lambda block, x: block(x, over_states))
        by_token = states.reshape(batch, tokens, self.states, -1)
        joined = self.projector(by_token.swapaxes(2, 3))[..., 0]
        output: Tokens = run(self.token_blocks, joined, lambda block, x: block(x, over_tokens))
        return output


class JointBlock(PreNormBlock):
    """Block on the joint stream of text and image, modulated by time."""

    def __init__(
        self, shape: BlockShape, attention: TokenAttention, **kinds: Unpack[Kinds]
    ) -> None:
        super().__init__(shape, **kinds)
        self.table = nnx.Param(
            jnp.zeros((VECTORS, shape.width), kinds["param_dtype"]), axes=(None, "embed")
        )
        self.token_attention = attention

    def __call__(  # type: ignore[override]
        self, x: Tokens, vectors: Vectors, positions: Positions
    ) -> Tokens:
        """Apply attention and feed-forward; `vectors` are those of all blocks."""
        scale, shift, gate, mlp_scale, mlp_shift, mlp_gate = self._modulations(vectors)
        attend = partial(self.token_attention, keys=positions.keys)
        normed = (1 + scale) * self.attention_norm(x) + shift
        x = x + gate * self.attention(normed, attend, positions.rope)
        normed = (1 + mlp_scale) * self.feed_forward_norm(x) + mlp_shift
        return split(fit_float16(x + mlp_gate * self.feed_forward(normed)), *AXES)

    def attention_input(self, x: Tokens, vectors: Vectors) -> Tokens:
        """Return modulated tokens, as the block's attention reads them."""
        scale, shift, *_ = self._modulations(vectors)
        return (1 + scale) * self.attention_norm(x) + shift

    def _modulations(self, vectors: Vectors) -> list[Float[Array, "batch 1 width"]]:
        return split_vectors(vectors + self.table[...].astype(vectors.dtype))


class Krea2Conditions(nnx.Module):
    """Embedding of a timestep to the modulations that all blocks share."""

    def __init__(
        self, config: Krea2Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds, width = Kinds(rngs=rngs, param_dtype=param_dtype), config.width
        self.features = config.timestep_embed_dim
        self.time_in = ConditionMLP(self.features, width, activation=tanh_gelu, **kinds)
        self.modulation = linear(width, VECTORS * width, ("embed", "modulation"), **kinds)

    def __call__(self, timestep: Float[Array, " times"]) -> SharedModulations:
        """Compute the modulations, in the dtype of the weights.

        Args:
            timestep: 1000 · sigma, 0 to 1000, float32.
        """
        time = self.time_in(sinusoid(timestep, self.features))
        vectors = linear_with_exact_activations(self.modulation, tanh_gelu(time))
        return SharedModulations(vectors.reshape(len(time), VECTORS, -1), time)


class Krea2Transformer(nnx.Module):
    """Denoising transformer of Krea 2: packed latents, captions and time to velocity."""

    def __init__(
        self,
        config: Krea2Config,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width, channels, epsilon = config.width, config.in_channels, config.norm_eps
        shape = BlockShape(
            width,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.intermediate_size,
            epsilon,
        )
        self.config = config
        self.latents_in = linear(channels, width, (None, "embed"), **kinds)
        self.conditions = Krea2Conditions(config, **kinds)
        self.text_fusion = TextFusion(config, **kinds)
        self.text_in = TextInput(config.text_hidden_dim, width, epsilon, **kinds)
        self.blocks = stack(partial(JointBlock, shape, attention), config.num_layers, **kinds)
        self.out_norm = OffsetRMSNorm(width, epsilon, rngs=rngs)
        self.out_table = nnx.Param(jnp.zeros((OUT_VECTORS, width), param_dtype), axes=(None, None))
        self.latents_out = linear(width, channels, ("embed", None), **kinds)

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens patch"],
        captions: Float[Array, "batch text_tokens features"],
        lengths: Int[Array, " batch"],
        modulations: SharedModulations,
        grids: tuple[Grid, ...],
        cache: CachedStep | None = None,
    ) -> Float[Array, "batch image_tokens patch"]:
        """Return the velocity of the latents, towards noise, in the dtype of the weights.

        Args:
            captions: hidden states of the text encoder, concatenated by token and padded.
            lengths: tokens of each caption, without padding.
            modulations: output of `conditions` for the timestep.
            grids: token rows and columns of the image; a single entry.
            cache: state of earlier steps; may replace most blocks.
        """
        dtype, tokens = self.latents_in.kernel.dtype, captions.shape[1]
        keys = jnp.arange(tokens) < lengths[:, None]
        text = self.text_in(self.text_fusion(captions.astype(dtype), keys))
        image, text = self.latents_in(padded(latents, dtype)), padded(text, dtype)
        positions = self._positions(keys, *grids)
        both, vectors = padded_tokens.join([text, image]), modulations.blocks
        if cache is None:
            image = cut_last(self._run(both, vectors, positions), image.shape[1])
        else:
            image = self._run_cached(cache, both, image, vectors, positions)
        scale, shift = split_vectors(modulations.out[:, None] + self.out_table[...].astype(dtype))
        velocity = self.latents_out((1 + scale) * self.out_norm(image) + shift)
        return velocity[:, : latents.shape[1]]

    def _positions(self, keys: Bool[Array, "batch text_tokens"], grid: Grid) -> Positions:
        """Return positions: zero for text; row and column for the image."""
        ids = np.zeros((keys.shape[1], 3), int), grid_ids(*grid, before=(0,))
        positions = joined_positions(ids, self.config.axes_dims_rope, self.config.rope_theta)
        return positions._replace(keys=keys_of_rows(keys, math.prod(grid)))

    def _run(self, both: Tokens, vectors: Vectors, at: Positions, **some: int) -> Tokens:
        """Run the blocks; `some` selects a range, as in `run`."""
        return run(self.blocks, both, lambda block, x: block(x, vectors, at), **some)

    def _run_cached(
        self, cache: CachedStep, both: Tokens, image: ImageTokens, vectors: Vectors, at: Positions
    ) -> ImageTokens:
        def after_first() -> tuple[Tokens, ImageTokens]:
            output = self._run(both, vectors, at, stop=1)
            return output, cut_last(output, image.shape[1])

        def first_input() -> Tokens:
            return run(self.blocks, image, lambda b, x: b.attention_input(x, vectors), stop=1)

        def rest(both: Tokens, others: tuple[Vectors, Positions]) -> ImageTokens:
            return cut_last(self._run(both, *others, first=cache.first), image.shape[1])

        inputs = cache.before_blocks(both, image, after_first, first_input)
        return cache.run(inputs, (vectors, at), rest)
