"""Qwen-Image ControlNet: some blocks of the transformer that output residuals for its image tokens.

Source: diffusers' QwenImageControlNetModel (models/controlnets/controlnet_qwenimage.py), InstantX.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.joint_control import ControlResiduals, JointControlNet
from models.nn.layers.norms import RMSNorm
from models.nn.layers.parameterised import Kinds
from models.qwenimage.config import QwenImageControlNetConfig
from models.qwenimage.latents import image_ids, text_ids
from models.qwenimage.modulations import QwenImageBlockConditions
from models.qwenimage.network import THETA, shape_of
from models.vae.references import Grid


class QwenImageControlNet(JointControlNet):
    """Network from packed latents, packed control latents, captions and time to residuals."""

    def __init__(
        self,
        config: QwenImageControlNetConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        shape, kinds = shape_of(config), Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(config, shape, attention, QwenImageBlockConditions, theta=THETA, **kinds)
        self.text_norm = RMSNorm(config.joint_attention_dim, shape.epsilon, **kinds)

    def __call__(
        self,
        grid: Grid,
        latents: Float[Array, "batch image_tokens patch"],
        timestep: Float[Array, " batch"],
        captions: Float[Array, "batch text_tokens features"],
        lengths: Int[Array, " batch"],
        hint: Float[Array, "batch image_tokens patch"],
    ) -> ControlResiduals:
        """Return the residuals, padded, in the dtype of the weights.

        Args:
            grid: token rows and columns of the image.
            timestep: 1000 · sigma, 0 to 1000, float32.
            captions: features of the text encoder, padded.
            lengths: tokens of each caption, without padding.
            hint: packed latents of the control image.
        """
        tokens = captions.shape[1]
        return self.residuals(
            latents,
            hint,
            self.text_in(self.text_norm(captions.astype(self.text_in.kernel.dtype))),
            self.conditions.of_blocks(self.conditions.vector(timestep)),
            image_ids(grid),
            text_ids(tokens, (grid,)),
            jnp.arange(tokens) < lengths[:, None],
        )
