"""Z-Image ControlNet: blocks that compute residuals for image and text of the joint layers.

It has no layers for time, captions and latents: it runs those of the transformer.

Source: diffusers' ZImageControlNetModel (models/controlnets/controlnet_z_image.py); alibaba-pai,
Z-Image-Turbo-Fun-Controlnet-Union, 2.0 and 2.1.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.double_stream import Tokens
from models.nn.blocks.joint_control import Samples, outputs_of_blocks, projected_states
from models.nn.blocks.single_stream import Vector
from models.nn.layers import padded_tokens
from models.nn.layers.padded_tokens import Positions, join_positions
from models.nn.layers.parameterised import Kinds, Linear, linear
from models.nn.layers.scanned import scan, stack_any
from models.vae.patches import PATCH
from models.vae.references import Grid
from models.zimage.config import OWN_REFINER, ZImageControlNetConfig
from models.zimage.network import (
    EmbeddedTokens,
    ZImageTransformer,
    block_of,
    filled_tokens,
    run_blocks,
)


class ControlStack(NamedTuple):
    """Blocks with an output layer each, and the layer before the first block."""

    before: Linear
    blocks: nnx.Module
    out: nnx.Module

    def samples(
        self, x: Tokens, hint: Tokens, condition: Vector, at: Positions
    ) -> tuple[Samples, Tokens]:
        """Return the residuals, and the control's tokens after the last block.

        Args:
            x: tokens of the transformer before its blocks.
            hint: tokens of the control.
        """
        first = self.before(hint) + x
        last, inputs = scan(self.blocks, first, lambda block, x: block(x, condition, at))
        return projected_states(self.out, outputs_of_blocks(inputs, last), lambda x: x), last


class ZImageControlNet(nnx.Module):
    """Network from the transformer's inputs and packed control latents to residuals."""

    def __init__(
        self,
        config: ZImageControlNetConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        square = partial(linear, config.dim, config.dim, ("embed", None))
        block = partial(block_of(config, attention), condition=config.condition)
        layers, refiner = len(config.control_layers_places), config.refiner_layers
        outputs = refiner if config.add_control_noise_refiner == OWN_REFINER else 0
        self.config = config
        patch = PATCH**2 * config.control_in_dim
        self.hint_in = linear(patch, config.dim, (None, "embed"), **kinds)
        self.before, self.blocks = square(**kinds), stack_any(block, layers, **kinds)
        self.out = stack_any(square, layers, **kinds)
        self.refiner_blocks = stack_any(block, refiner, **kinds)
        self.refiner_before = square(**kinds) if outputs else None
        self.refiner_out = stack_any(square, outputs, **kinds)

    def __call__(
        self,
        transformer: ZImageTransformer,
        grid: Grid,
        latents: Float[Array, "batch image_tokens patch"],
        timestep: Float[Array, " batch"],
        captions: Float[Array, "batch text_tokens features"],
        lengths: Int[Array, " batch"],
        scale: Float[Array, " batch"],
        hint: Float[Array, "batch image_tokens patch"],
    ) -> Samples:
        """Return the residuals of image and text, joined and padded, in the dtype of the weights.

        Args:
            transformer: the controlled transformer, whose layers embed the inputs.
            grid: token rows and columns of the image.
            latents, timestep, captions, lengths: inputs of the transformer.
            scale: scale of the residuals that this network adds itself; those of the result are
                unscaled.
            hint: packed latents of the control image.
        """
        x = transformer.embedded(latents, captions, lengths, timestep, (grid,))
        control = filled_tokens(
            self._with_all_channels(hint), math.prod(grid), self.hint_in, transformer.image_filling
        )
        image, control = self._refined(transformer, x, control, scale)
        both, control = (padded_tokens.join([tokens, x.text]) for tokens in (image, control))
        at = join_positions([x.of_image, x.of_text])
        return self._layers.samples(both, control, x.condition, at)[0]

    @property
    def _layers(self) -> ControlStack:
        assert self.blocks is not None and self.out is not None  # at least one layer
        return ControlStack(self.before, self.blocks, self.out)

    @property
    def _refiner(self) -> ControlStack:
        """Return the stack whose residuals the transformer's blocks for images get."""
        if self.refiner_before is None:
            return self._layers
        assert self.refiner_blocks is not None and self.refiner_out is not None
        return ControlStack(self.refiner_before, self.refiner_blocks, self.refiner_out)

    def _with_all_channels(
        self, hint: Float[Array, "batch tokens _patch"]
    ) -> Float[Array, "batch tokens _in"]:
        """Append zeros for a mask and a masked image, as diffusers does without inpainting."""
        by_pixel = hint.reshape(*hint.shape[:2], PATCH**2, -1)
        missing = self.config.control_in_dim - by_pixel.shape[-1]
        padding = ((0, 0), (0, 0), (0, 0), (0, missing))
        return jnp.pad(by_pixel, padding).reshape(*hint.shape[:2], -1)

    def _refined(
        self,
        transformer: ZImageTransformer,
        x: EmbeddedTokens,
        control: Tokens,
        scale: Float[Array, " batch"],
    ) -> tuple[Tokens, Tokens]:
        """Run the blocks for images over the image's tokens and the control's."""
        residuals = None
        if self.config.add_control_noise_refiner is None:
            control = run_blocks(self.refiner_blocks, control, x.condition, x.of_image)
        else:
            samples, control = self._refiner.samples(x.image, control, x.condition, x.of_image)
            places = self.config.refiner_places
            factors = scale[:, None, None, None].astype(samples.dtype)
            residuals = {places: samples[:, : len(places)] * factors} if places else None
        image = run_blocks(transformer.image_blocks, x.image, x.condition, x.of_image, residuals)
        return image, control
