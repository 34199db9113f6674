"""Modulations of Flux's blocks, computed from time, guidance and pooled text.

These layers contain a quarter of the network's parameters and do not depend on the image. The
modulations of many steps are therefore computed in one pass over these parameters.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.flux.config import FluxConfig
from models.nn.blocks.joint_transformer import (
    OF_OUTPUT,
    OF_SINGLE,
    OF_STREAM,
    BlockModulations,
    Modulations,
    OfLayers,
    vectors_of,
)
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import Modulation
from models.nn.layers.parameterised import Kinds
from models.nn.layers.scanned import stack_any

Vector = Float[Array, "batch width"]

TIME_FEATURES = 256
"""Width of the sinusoids of timestep and guidance; the same in every Flux."""


class BlockConditions(nnx.Module):
    """Embedding of timestep, guidance and pooled text to the modulations of all blocks."""

    def __init__(
        self, config: FluxConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        width = config.width
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        of_stream, of_single = (partial(Modulation, width, of) for of in (OF_STREAM, OF_SINGLE))
        self.time_in = ConditionMLP(TIME_FEATURES, width, **kinds)
        guided = config.guidance_embeds
        self.guidance_in = ConditionMLP(TIME_FEATURES, width, **kinds) if guided else None
        self.pooled_in = ConditionMLP(config.pooled_projection_dim, width, **kinds)
        self.image_modulation = stack_any(of_stream, config.num_layers, **kinds)
        self.text_modulation = stack_any(of_stream, config.num_layers, **kinds)
        self.single_modulation = stack_any(of_single, config.num_single_layers, **kinds)

    def of_blocks(self, vector: Vector) -> BlockModulations:
        """Compute the modulations of all blocks, in the dtype of the weights."""

        def of_layers(stacked: Modulation | None) -> OfLayers | None:
            return None if stacked is None else vectors_of(stacked, vector)

        return BlockModulations(
            of_layers(self.image_modulation),
            of_layers(self.text_modulation),
            of_layers(self.single_modulation),
        )

    def vector(
        self,
        timestep: Float[Array, " batch"],
        guidance: Float[Array, " batch"] | None,
        pooled_embeds: Float[Array, "batch pooled"],
    ) -> Vector:
        """Compute the vector that modulates every block: time + guidance + pooled text.

        Args:
            timestep: 1000 · sigma, 0 to 1000, float32.
            guidance: the request's guidance scale, float32; required by networks with a guidance
                embedding, ignored by others.
        """
        vector = self.time_in(sinusoid(timestep, TIME_FEATURES))
        if self.guidance_in is not None:
            if guidance is None:
                raise ValueError("this transformer has a guidance embedding: give it a guidance")
            vector = vector + self.guidance_in(sinusoid(1000 * guidance, TIME_FEATURES))
        return vector + self.pooled_in(pooled_embeds)


class Conditions(BlockConditions):
    """Embedding to the modulations of all blocks and of the output norm."""

    def __init__(
        self, config: FluxConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        super().__init__(config, rngs=rngs, param_dtype=param_dtype)
        self.out_modulation = Modulation(
            config.width, OF_OUTPUT, rngs=rngs, param_dtype=param_dtype
        )

    def __call__(
        self,
        timestep: Float[Array, " batch"],
        guidance: Float[Array, " batch"] | None,
        pooled_embeds: Float[Array, "batch pooled"],
    ) -> Modulations:
        """Compute all modulations, in the dtype of the weights; arguments as for `vector`."""
        vector = self.vector(timestep, guidance, pooled_embeds)
        return Modulations(*self.of_blocks(vector), self.out_modulation(vector))
