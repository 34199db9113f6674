"""Flux ControlNet: a smaller copy of the transformer that outputs residuals for its image tokens.

Source: diffusers' FluxControlNetModel (models/controlnets/controlnet_flux.py), InstantX.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.flux.control_config import FluxControlNetConfig
from models.flux.modulations import BlockConditions
from models.flux.network import THETA, shape_of, single_block
from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.double_stream import Tokens
from models.nn.blocks.joint_control import ControlResiduals, JointControlNet
from models.nn.layers.parameterised import Kinds, embed


class FluxControlNet(JointControlNet):
    """Network from packed latents, packed control latents and conditioning to residuals."""

    def __init__(
        self,
        config: FluxControlNetConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(
            config,
            shape_of(config),
            attention,
            BlockConditions,
            (single_block(config), config.num_single_layers),
            theta=THETA,
            **kinds,
        )
        modes = config.num_mode
        self.kinds = None if modes is None else embed(modes, config.width, (None, None), **kinds)

    def __call__(
        self,
        image_ids: np.ndarray,
        latents: Float[Array, "batch image_tokens channels"],
        timestep: Float[Array, " batch"],
        guidance: Float[Array, " batch"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        pooled_embeds: Float[Array, "batch pooled"],
        hint: Float[Array, "batch image_tokens channels"],
        kind: Int[Array, " batch"],
    ) -> ControlResiduals:
        """Return the residuals, padded, in the dtype of the weights.

        Args:
            image_ids: positions, [tokens, 3].
            timestep, guidance: as for `Conditions`.
            hint: packed latents of the control image.
            kind: type of each control, for unions.
        """
        modulations = self.conditions.of_blocks(
            self.conditions.vector(timestep, guidance, pooled_embeds)
        )
        text = self._text(prompt_embeds, kind)
        text_ids = np.zeros((text.shape[1], image_ids.shape[1]), int)
        return self.residuals(latents, hint, text, modulations, image_ids, text_ids)

    def _text(
        self, prompt_embeds: Float[Array, "batch text_tokens joint"], kind: Int[Array, " batch"]
    ) -> Tokens:
        """Return the prompt's tokens, preceded by a token of the union's control type."""
        text: Array = self.text_in(prompt_embeds.astype(self.text_in.kernel.dtype))
        if self.kinds is None:
            return text
        of_kind = self.kinds.embedding[...][kind].astype(text.dtype)
        return jnp.concatenate([of_kind[:, None], text], axis=1)
