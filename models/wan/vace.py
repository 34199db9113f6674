"""The VACE transformer: Wan's, with hints from a stack of blocks that reads a control video.

The control blocks see the tokens of the noisy video once, then only each other. Each makes one
hint, which is added to the tokens behind a block of the main stack, times its scale.

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
from models.nn.layers.parameterised import conv, linear
from models.nn.layers.scanned import at, scan, stack
from models.nn.layers.step_cache import CachedStep, Entered
from models.parallel.placement import split
from models.wan.network import SPLIT, BlockContext, Tokens, Video, WanBlock, WanTransformer
from models.wan.vace_config import VaceConfig


class Control(NamedTuple):
    """Control video and the strength of its hints."""

    video: Video
    """Latents of the noisy video's size, with `vace_in_channels`."""
    scales: Float[Array, "batch hints"]
    """Factor of each hint."""


class Controlled(NamedTuple):
    """Tokens on their way through the main stack, and what its hints are made of."""

    x: Tokens
    first: Tokens
    """The same before any block."""
    control: Tokens
    scales: Float[Array, "batch hints"]


class ControlBlock(WanBlock):
    """Block of the control stack, and the projection of its tokens to a hint."""

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
    """Video latents, conditions and a control video to velocity."""

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
        super().__init__(config, attention, cross_attention, rngs=rngs, param_dtype=param_dtype)
        width, patch = config.width, config.patch_size
        self.control_patches_in = conv(
            config.vace_in_channels, width, patch, strides=patch, rngs=rngs, param_dtype=param_dtype
        )
        self.control_in = linear(width, width, ("embed", None), rngs=rngs, param_dtype=param_dtype)
        self.control_blocks = stack(
            lambda rngs: ControlBlock(
                config, attention, cross_attention, rngs=rngs, param_dtype=param_dtype
            ),
            len(config.vace_layers),
            rngs,
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
        """Velocity of the latents, as `WanTransformer` has it.

        Raises:
            ValueError: there is no control video, or not of the latents' size, or another number
                of scales than of hints; and what `WanTransformer` raises.
        """
        if control is None or control.video.shape[1:4] != latents.shape[1:4]:
            there = "none" if control is None else control.video.shape[1:4]
            raise ValueError(f"a control video of {latents.shape[1:4]} latents is needed: {there}")
        if control.scales.shape[1] != len(self.config.vace_layers):
            raise ValueError(
                f"{control.scales.shape[1]} scales for {len(self.config.vace_layers)} hints"
            )
        inside = self.enter(latents, timestep, prompt_embeds, image_embeds)
        read = self.tokens(self.control_patches_in, control.video)
        scales = control.scales.astype(inside.x.dtype)
        given = Controlled(inside.x, inside.x, read, scales)
        run = self._with_hints if cache is None else partial(self._with_hints_cached, cache)
        return self.leave(inside, run(given, inside.context, inside.positions))

    def _with_hints(
        self, given: Controlled, context: BlockContext, positions: Positions, behind: int = 0
    ) -> Tokens:
        """Run the main stack from block `behind` on; hints of the blocks before it come first."""
        layers, scales = self.config.vace_layers, given.scales.T[:, :, None, None]
        hints, x = self._hints(given, context, positions), given.x
        for number in range(sum(layer < behind for layer in layers)):
            x = x + hints[number] * scales[number]
        # Blocks without a hint take the last one, times nought.
        scales = jnp.concatenate([scales, jnp.zeros_like(scales[:1])])
        numbers = [layers.index(n) if n in layers else len(layers) for n in range(self.depth)]

        def block(block: WanBlock, x: Tokens, number: Array) -> Tokens:
            hint = at(hints, jnp.minimum(number, len(layers) - 1))
            return split(block(x, *context, positions) + hint * at(scales, number), *SPLIT)

        between = (behind, self.depth) if behind else None
        return scan(self.blocks, x, block, jnp.asarray(numbers, jnp.int32), between=between)[0]

    def _hints(
        self, given: Controlled, context: BlockContext, positions: Positions
    ) -> Float[Array, "hints batch tokens width"]:
        """Every control block's hint."""

        def block(block: ControlBlock, carry: tuple[Tokens, Tokens]) -> tuple[Tokens, Tokens]:
            control = block(carry[0], *context, positions)
            return control, split(block.hint_out(control), *SPLIT)

        entered = split(self.control_in(given.control) + given.first, *SPLIT)
        carry = entered, jnp.zeros_like(entered)
        (_, last), (_, before) = scan(self.control_blocks, carry, block)
        return jnp.concatenate([before[1:], last[None]])

    def _with_hints_cached(
        self, cache: CachedStep, given: Controlled, context: BlockContext, positions: Positions
    ) -> Tokens:
        """Run a step that may leave most blocks out, and with them all hints."""
        x, signal = self.signal(given.x, context, positions, cache.first)
        return cache.run(
            Entered(given._replace(x=x), x, signal),
            context,
            lambda given, context: self._with_hints(given, context, positions, cache.first),
        )
