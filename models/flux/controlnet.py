"""Flux ControlNet: a smaller copy of the transformer that outputs residuals for its image tokens.

Source: diffusers' FluxControlNetModel (models/controlnets/controlnet_flux.py), InstantX.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.flux.control_config import FluxControlNetConfig
from models.flux.modulations import BlockConditions, BlockModulations
from models.flux.network import THETA, shape_of, single_block
from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.double_stream import AXES, DoubleBlock, Tokens, joined_positions
from models.nn.blocks.joint_transformer import by_layer
from models.nn.layers import padded_tokens
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, embed, linear
from models.nn.layers.scanned import layers_of, scan, stack_any
from models.parallel.placement import split

States = Float[Array, "states batch tokens width"]
Samples = Float[Array, "batch states _tokens width"]
In = Float[Array, "batch _tokens _features"]


class ControlResiduals(NamedTuple):
    """Residuals of a ControlNet for double and single blocks; None without any."""

    double: Samples | None
    single: Samples | None


class FluxControlNet(nnx.Module):
    """Network from packed latents, packed control latents and conditioning to residuals."""

    def __init__(
        self,
        config: FluxControlNetConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        width, kinds = config.width, Kinds(rngs=rngs, param_dtype=param_dtype)
        shape = shape_of(config)

        double_block = partial(DoubleBlock, shape, attention)
        single = partial(single_block(config), shape, attention)
        out = partial(linear, width, width, ("embed", None))
        self.config = config
        self.latents_in = linear(config.in_channels, width, (None, "embed"), **kinds)
        self.hint_in = linear(config.in_channels, width, (None, "embed"), **kinds)
        self.text_in = linear(config.joint_attention_dim, width, (None, "embed"), **kinds)
        self.conditions = BlockConditions(config, **kinds)
        modes = config.num_mode
        self.kinds = None if modes is None else embed(modes, width, (None, None), **kinds)
        self.double_blocks = stack_any(double_block, config.num_layers, **kinds)
        self.single_blocks = stack_any(single, config.num_single_layers, **kinds)
        self.double_out = stack_any(out, config.num_layers, **kinds)
        self.single_out = stack_any(out, config.num_single_layers, **kinds)

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
        positions = joined_positions((text_ids, image_ids), self.config.axes_dims_rope, THETA)
        image = self._image(latents, hint)
        return self._run(image, split(padded_tokens.pad(text), *AXES), modulations, positions)

    def _image(self, latents: In, hint: In) -> Tokens:
        dtype = self.latents_in.kernel.dtype
        x, control = (split(padded_tokens.pad(x.astype(dtype)), *AXES) for x in (latents, hint))
        return self.latents_in(x) + self.hint_in(control)

    def _text(self, prompt_embeds: In, kind: Int[Array, " batch"]) -> Tokens:
        """Return the prompt's tokens, preceded by a token of the union's control type."""
        text = self.text_in(prompt_embeds.astype(self.text_in.kernel.dtype))
        if self.kinds is None:
            return text
        of_kind = self.kinds.embedding[...][kind].astype(text.dtype)
        return jnp.concatenate([of_kind[:, None], text], axis=1)

    def _run(
        self, image: In, text: In, modulations: BlockModulations, positions: Positions
    ) -> ControlResiduals:
        tokens = text.shape[1], image.shape[1]
        double = single = None
        if self.double_blocks is not None:
            vectors = (modulations.image, modulations.text)
            (image, text), inputs = _each(self.double_blocks, (image, text), vectors, positions)
            double = _projected_states(
                self.double_out, _outputs_of_blocks(inputs[0], image), lambda state: state
            )
        if self.single_blocks is not None:
            both = padded_tokens.join([text, image])
            both, inputs = _each(self.single_blocks, both, (modulations.single,), positions)
            states = _outputs_of_blocks(inputs, both)
            single = _projected_states(
                self.single_out, states, lambda state: padded_tokens.cut(state, *tokens)[1]
            )
        return ControlResiduals(double, single)


def _each(
    blocks: nnx.Module, carry: Any, modulations: tuple[Any, ...], positions: Positions
) -> tuple[Any, Any]:
    """Return the stream after all blocks, and the input of each block."""
    modulation = [by_layer(vectors, layers_of(blocks)) for vectors in modulations]
    return scan(
        blocks, carry, lambda block, x, *modulation: block(x, *modulation, positions), *modulation
    )


def _outputs_of_blocks(inputs: States, last: Tokens) -> States:
    """Return the output of each ControlNet block, from all blocks' inputs and the last output."""
    return jnp.concatenate([inputs[1:], last[None]])


def _projected_states(
    out: nnx.Module | None, states: States, image: Callable[[Tokens], Tokens]
) -> Samples:
    """Project the image tokens after each ControlNet block by its output layer."""
    assert out is not None  # one layer per block
    first = jnp.zeros_like(image(states[0]))
    last, inputs = scan(out, first, lambda layer, _, state: layer(image(state)), states)
    return split(_outputs_of_blocks(inputs, last).swapaxes(0, 1), "batch", None, "tokens", None)
