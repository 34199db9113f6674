"""Conditioning of Qwen-Image's blocks: the vectors made of time alone.

A third of the network's parameters is here, and none of it looks at an image or a prompt: the
vectors of many steps come out of one reading of these parameters.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.blocks.joint_transformer import OF_OUTPUT, OF_STREAM, Modulations, vectors_of
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import Modulation
from models.nn.layers.scanned import stack
from models.qwenimage.config import QwenImageConfig

TIME_FEATURES = 256
"""Width of the timestep's sinusoids; fixed in every Qwen-Image."""


class QwenImageConditions(nnx.Module):
    """Timestep → modulations."""

    def __init__(
        self, config: QwenImageConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        width, layers = config.width, config.num_layers
        self.zero_cond_t = config.zero_cond_t
        modulation = partial(Modulation, width, param_dtype=param_dtype)
        self.time_in = ConditionMLP(TIME_FEATURES, width, rngs=rngs, param_dtype=param_dtype)
        self.image_modulation, self.text_modulation = (
            stack(lambda rngs: modulation(OF_STREAM, rngs=rngs), layers, rngs) for _ in range(2)
        )
        self.out_modulation = modulation(OF_OUTPUT, rngs=rngs)

    def __call__(self, timestep: Float[Array, " batch"]) -> Modulations:
        """Compute all modulations, in the dtype of the weights.

        Where references have a time of their own, which is 0, the image's vectors are twice as
        many: those of the drawn tokens, then those of the references.

        Args:
            timestep: 1000 · sigma, 0 to 1000, float32.
        """
        vector = self.time_in(sinusoid(timestep, TIME_FEATURES))
        of_image = vectors_of(self.image_modulation, vector)
        if self.zero_cond_t:
            at_zero = self.time_in(sinusoid(0 * timestep, TIME_FEATURES))
            of_references = vectors_of(self.image_modulation, at_zero)
            of_image = jnp.concatenate([of_image, of_references], axis=2)
        return Modulations(
            of_image,
            vectors_of(self.text_modulation, vector),
            None,
            self.out_modulation(vector),
        )
