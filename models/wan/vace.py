"""VACE transformer: Wan with hints from a second stack of blocks that processes a control video.

The control blocks receive the noisy video's tokens once, at the first block. Each control block
outputs one hint. The hint, times its scale, is added to the output of a block of the main stack.

Source: Jiang et al. 2025, "VACE: All-in-One Video Creation and Editing", section 3.3, in the
parametrisation of diffusers' WanVACETransformer3DModel.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import CrossAttention as Crossing
from models.nn.attention.attention import TokenAttention, cross_attention, token_attention
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, conv, linear
from models.nn.layers.scanned import at, scan, stack
from models.nn.layers.step_cache import BlockInputs, CachedStep
from models.parallel.placement import split
from models.wan.network import SPLIT, BlockContext, Tokens, Video, WanBlock, WanTransformer
from models.wan.vace_config import VaceConfig


class Control(NamedTuple):
    """Control video of VACE, and the strength of its hints."""

    video: Video
    """Control latents of the noisy latents' size, with `vace_in_channels`."""
    scales: Float[Array, "batch hints"]
    """Scale of each hint."""


class ControlledTokens(NamedTuple):
    """Video tokens between blocks, and the inputs of the control stack."""

    x: Tokens
    first: Tokens
    """Video tokens before any block."""
    control: Tokens
    scales: Float[Array, "batch hints"]


class ControlBlock(WanBlock):
    """Block of the control stack, with the output projection of its hint."""

    def __init__(
        self,
        config: VaceConfig,
        attention: TokenAttention,
        cross_attention: Crossing,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        super().__init__(config, attention, cross_attention, rngs=rngs, param_dtype=param_dtype)
        self.hint_out = linear(
            config.width, config.width, ("embed", None), rngs=rngs, param_dtype=param_dtype
        )


class VaceTransformer(WanTransformer):
    """Denoising transformer of VACE: latents, conditioning and a control video to velocity."""

    config: VaceConfig

    def __init__(
        self,
        config: VaceConfig,
        attention: TokenAttention = token_attention,
        cross_attention: Crossing = cross_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(config, attention, cross_attention, **kinds)
        width, patch = config.width, config.patch_size
        self.control_patches_in = conv(
            config.vace_in_channels, width, patch, strides=patch, **kinds
        )
        self.control_in = linear(width, width, ("embed", None), **kinds)
        self.control_blocks = stack(
            partial(ControlBlock, config, attention, cross_attention),
            len(config.vace_layers),
            **kinds,
        )

    def __call__(
        self,
        latents: Video,
        timestep: Float[Array, " batch *tokens"],
        prompt_embeds: Float[Array, "batch text_tokens text_dim"],
        image_embeds: Float[Array, "batch image_tokens image_dim"] | None = None,
        cache: CachedStep | None = None,
        control: Control | None = None,
    ) -> Float[Array, "batch frames rows columns out_channels"]:
        """Return the velocity of the latents, as `WanTransformer` does.

        Raises:
            ValueError: the control video is missing or of another size, or the number of scales
                differs from that of hints; and as `WanTransformer` does.
        """
        if control is None or control.video.shape[1:4] != latents.shape[1:4]:
            actual = "none" if control is None else control.video.shape[1:4]
            raise ValueError(f"a control video of {latents.shape[1:4]} latents is needed: {actual}")
        if control.scales.shape[1] != len(self.config.vace_layers):
            raise ValueError(
                f"{control.scales.shape[1]} scales for {len(self.config.vace_layers)} hints"
            )
        step = self.embed_inputs(latents, timestep, prompt_embeds, image_embeds)
        read = self.tokens(self.control_patches_in, control.video)
        scales = control.scales.astype(step.x.dtype)
        controlled = ControlledTokens(step.x, step.x, read, scales)
        run = self._with_hints if cache is None else partial(self._with_hints_cached, cache)
        return self.project_output(step, run(controlled, step.context, step.positions))

    def _with_hints(
        self,
        controlled: ControlledTokens,
        context: BlockContext,
        positions: Positions,
        first_block: int = 0,
    ) -> Tokens:
        """Run the main stack from `first_block` on, after adding the hints of earlier blocks."""
        layers, scales = self.config.vace_layers, controlled.scales.T[:, :, None, None]
        hints, x = self._hints(controlled, context, positions), controlled.x
        for number in range(sum(layer < first_block for layer in layers)):
            x = x + hints[number] * scales[number]
        # Blocks without a hint use the last hint with scale zero.
        scales = jnp.concatenate([scales, jnp.zeros_like(scales[:1])])
        numbers = [layers.index(n) if n in layers else len(layers) for n in range(self.depth)]

        def block(block: WanBlock, x: Tokens, number: Array) -> Tokens:
            hint = at(hints, jnp.minimum(number, len(layers) - 1))
            return split(block(x, *context, positions) + hint * at(scales, number), *SPLIT)

        between = (first_block, self.depth) if first_block else None
        return scan(self.blocks, x, block, jnp.asarray(numbers, jnp.int32), between=between)[0]

    def _hints(
        self, controlled: ControlledTokens, context: BlockContext, positions: Positions
    ) -> Float[Array, "hints batch tokens width"]:
        """Run the control stack, and return the hint of each control block."""

        def block(block: ControlBlock, carry: tuple[Tokens, Tokens]) -> tuple[Tokens, Tokens]:
            control = block(carry[0], *context, positions)
            return control, split(block.hint_out(control), *SPLIT)

        entered = split(self.control_in(controlled.control) + controlled.first, *SPLIT)
        carry = entered, jnp.zeros_like(entered)
        (_, last), (_, before) = scan(self.control_blocks, carry, block)
        return jnp.concatenate([before[1:], last[None]])

    def _with_hints_cached(
        self,
        cache: CachedStep,
        controlled: ControlledTokens,
        context: BlockContext,
        positions: Positions,
    ) -> Tokens:
        """Run a step whose cache may skip most blocks and all hints."""
        x, signal = self.signal(controlled.x, context, positions, cache.first)
        return cache.run(
            BlockInputs(controlled._replace(x=x), x, signal),
            context,
            lambda controlled, context: self._with_hints(
                controlled, context, positions, cache.first
            ),
        )
