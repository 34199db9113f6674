"""Chroma transformer: predicts the velocity of packed latents from a caption and time.

The blocks are those of Flux, without layers for their modulations: one network, the approximator,
computes each vector of all blocks from the time and the vector's index.

Source: diffusers' ChromaTransformer2DModel; lodestone-rock, flow (src/models/chroma). Blocks are
stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.chroma.config import ChromaConfig
from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.double_stream import StreamShape
from models.nn.blocks.feed_forward import GeluFeedForward, GeluMiddle
from models.nn.blocks.joint_transformer import (
    OF_OUTPUT,
    OF_SINGLE,
    OF_STREAM,
    JointTransformer,
    Modulations,
)
from models.nn.blocks.single_stream import SingleBlock
from models.nn.layers.embeddings import ConditionMLP, sinusoid, sinusoid_table
from models.nn.layers.norms import RMSNorm
from models.nn.layers.parameterised import Kinds, linear
from models.nn.layers.positions import grid_ids
from models.nn.layers.row_grids import RowGrids
from models.nn.layers.scanned import run, stack_any
from models.nn.layers.step_cache import CachedStep
from models.parallel.trace_options import trace_options
from models.vae.references import Grid

THETA = 10_000.0
"""Base of the RoPE frequencies."""
EPSILON = 1e-6
"""Epsilon of the approximator's norms, as the authors' code has it."""


class ApproximatorLayer(nnx.Module):
    """Norm and MLP, added to their input."""

    def __init__(self, width: int, **kinds: Unpack[Kinds]) -> None:
        self.norm = RMSNorm(width, EPSILON, **kinds)
        self.mlp = ConditionMLP(width, width, **kinds)

    def __call__(self, x: Float[Array, "vectors width"]) -> Float[Array, "vectors width"]:
        """Apply the layer to every vector."""
        return x + self.mlp(self.norm(x))


class Approximator(nnx.Module):
    """Network from a timestep to the modulations of all blocks and of the output norm.

    Vectors are ordered by index: those of the single blocks, of the double blocks' images, of their
    texts, and of the output norm.
    """

    def __init__(
        self, config: ChromaConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds, hidden = Kinds(rngs=rngs, param_dtype=param_dtype), config.approximator_hidden_dim
        self.channels = config.approximator_num_channels
        self.of_blocks = (
            (config.num_single_layers, OF_SINGLE),
            (config.num_layers, OF_STREAM),
            (config.num_layers, OF_STREAM),
        )
        self.first = linear(self.channels, hidden, (None, "embed"), **kinds)
        self.layers = stack_any(
            partial(ApproximatorLayer, hidden), config.approximator_layers, **kinds
        )
        self.last = linear(hidden, config.width, ("embed", None), **kinds)

    def __call__(self, timestep: Float[Array, " times"]) -> Modulations:
        """Compute all modulations, in the dtype of the weights.

        Few vectors read many weights, so activations are not quantized.

        Args:
            timestep: 1000 · sigma, 0 to 1000, float32.
        """
        inputs = self._inputs(timestep)
        options = trace_options()
        with replace(options, quant=options.quant and "w8a16").active():
            x = self.first(inputs.reshape(-1, self.channels).astype(self.first.kernel.dtype))
            x = self.last(run(self.layers, x, lambda layer, x: layer(x)))
        return self._modulations(x.reshape(*inputs.shape[:2], -1))

    def _inputs(self, timestep: Float[Array, " times"]) -> Float[Array, "times vectors channels"]:
        """Return each vector's features: of the time, of a guidance of 0, and of its index."""
        quarter = self.channels // 4
        count = OF_OUTPUT + sum(layers * each for layers, each in self.of_blocks)
        indices = sinusoid_table(np.arange(count, dtype=np.float32) * 1000, 2 * quarter)
        guidance = sinusoid_table(np.zeros(count, np.float32), quarter)
        constant = np.concatenate([guidance, indices], axis=1)
        shape = len(timestep), count
        time = sinusoid(timestep, quarter)[:, None]
        return jnp.concatenate(
            [
                jnp.broadcast_to(time, (*shape, quarter)),
                jnp.broadcast_to(constant, (*shape, constant.shape[1])),
            ],
            axis=-1,
        )

    def _modulations(self, vectors: Float[Array, "times vectors width"]) -> Modulations:
        """Return the vectors by kind of block; those of the output norm have scale first."""
        ends = [*accumulate(layers * each for layers, each in self.of_blocks)]
        *blocks, out = jnp.split(vectors, ends, axis=1)
        single, image, text = (
            part.reshape(len(part), layers, each, -1) if layers else None
            for part, (layers, each) in zip(blocks, self.of_blocks, strict=True)
        )
        return Modulations(image, text, single, jnp.flip(out, axis=1))


class ChromaTransformer(JointTransformer):
    """Denoising transformer of Chroma: packed latents, captions and time to velocity."""

    config: ChromaConfig

    def __init__(
        self,
        config: ChromaConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        width = config.width
        shape = StreamShape(width, config.num_attention_heads, partial(GeluFeedForward, width))
        super().__init__(
            config,
            shape,
            attention,
            Approximator,
            (partial(SingleBlock, GeluMiddle, 4 * width), config.num_single_layers),
            theta=THETA,
            rngs=rngs,
            param_dtype=param_dtype,
        )

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens patch"],
        captions: Float[Array, "batch text_tokens features"],
        lengths: Int[Array, " batch"],
        modulations: Modulations,
        grids: tuple[Grid, ...] | RowGrids,
        cache: CachedStep | None = None,
    ) -> Float[Array, "batch image_tokens patch"]:
        """Return the velocity of the latents, in the dtype of the weights.

        Args:
            captions: features of T5, padded.
            lengths: tokens of each caption, without padding. The first token of the padding is
                attended to, the others are not.
            modulations: output of `conditions` for the timestep.
            grids: token rows and columns of the image, a single entry; or those of padded rows.
            cache: state of earlier steps; may replace most blocks.
        """
        tokens = captions.shape[1]
        return self.velocity(
            latents,
            captions,
            modulations,
            grids if isinstance(grids, RowGrids) else grid_ids(*grids[0], before=(0,)),
            np.zeros((tokens, 3), int),
            cache,
            jnp.arange(tokens) <= lengths[:, None],
        )
