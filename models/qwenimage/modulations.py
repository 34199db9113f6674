"""Modulations of Qwen-Image's blocks, computed from time only.

These layers contain a third of the network's parameters and do not depend on image or prompt. The
modulations of many steps are therefore computed in one pass over these parameters.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.blocks.joint_transformer import (
    OF_OUTPUT,
    OF_STREAM,
    BlockModulations,
    Modulations,
    vectors_of,
)
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import Modulation
from models.nn.layers.scanned import stack
from models.qwenimage.config import QwenImageConfig

TIME_FEATURES = 256
"""Width of the timestep's sinusoids; the same in every Qwen-Image."""


class QwenImageBlockConditions(nnx.Module):
    """Embedding of a timestep to the modulations of all blocks."""

    def __init__(
        self, config: QwenImageConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        width, layers = config.width, config.num_layers
        modulation = partial(Modulation, width, OF_STREAM, param_dtype=param_dtype)
        self.time_in = ConditionMLP(TIME_FEATURES, width, rngs=rngs, param_dtype=param_dtype)
        self.image_modulation, self.text_modulation = (
            stack(modulation, layers, rngs=rngs) for _ in range(2)
        )

    def vector(self, timestep: Float[Array, " batch"]) -> Float[Array, "batch width"]:
        """Embed timesteps: 1000 · sigma, 0 to 1000, float32."""
        output: Array = self.time_in(sinusoid(timestep, TIME_FEATURES))
        return output

    def of_blocks(self, vector: Float[Array, "batch width"]) -> BlockModulations:
        """Compute the modulations of all blocks, in the dtype of the weights."""
        image, text = (vectors_of(x, vector) for x in (self.image_modulation, self.text_modulation))
        return BlockModulations(image, text, None)


class QwenImageConditions(QwenImageBlockConditions):
    """Embedding of a timestep to the modulations of all blocks and of the output norm."""

    def __init__(
        self, config: QwenImageConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        super().__init__(config, rngs=rngs, param_dtype=param_dtype)
        self.zero_cond_t = config.zero_cond_t
        self.out_modulation = Modulation(
            config.width, OF_OUTPUT, rngs=rngs, param_dtype=param_dtype
        )

    def __call__(self, timestep: Float[Array, " batch"]) -> Modulations:
        """Compute all modulations, in the dtype of the weights.

        If references have timestep 0, the image has twice as many vectors. Those of the output
        image's tokens precede those of the references.

        Args:
            timestep: 1000 · sigma, 0 to 1000, float32.
        """
        vector = self.vector(timestep)
        of_image = vectors_of(self.image_modulation, vector)
        if self.zero_cond_t:
            of_references = vectors_of(self.image_modulation, self.vector(0 * timestep))
            of_image = jnp.concatenate([of_image, of_references], axis=2)
        of_text = vectors_of(self.text_modulation, vector)
        return Modulations(of_image, of_text, None, self.out_modulation(vector))
