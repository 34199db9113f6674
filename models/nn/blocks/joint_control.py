"""ControlNet of a joint transformer: a smaller copy that outputs residuals for its image tokens.

Source: diffusers' FluxControlNetModel and QwenImageControlNetModel (models/controlnets), InstantX.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.nn.attention.attention import TokenAttention
from models.nn.blocks.double_stream import StreamShape, Tokens, padded
from models.nn.blocks.joint_transformer import (
    BlockModulations,
    JointBlocks,
    JointConfig,
    MakeSingle,
    by_layer,
)
from models.nn.layers import padded_tokens
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, linear
from models.nn.layers.scanned import layers_of, scan, stack_any
from models.parallel.placement import split

States = Float[Array, "states batch tokens width"]
Samples = Float[Array, "batch states _tokens width"]
In = Float[Array, "batch _tokens _features"]


class ControlResiduals(NamedTuple):
    """Residuals of a ControlNet for double and single blocks; None without any."""

    double: Samples | None
    single: Samples | None


class JointControlNet(JointBlocks):
    """Network from packed latents, packed control latents and conditioning to residuals."""

    def __init__(
        self,
        config: JointConfig,
        shape: StreamShape,
        attention: TokenAttention,
        conditions: Callable[..., Any],
        single: tuple[MakeSingle, int] | None = None,
        *,
        theta: float,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        """Create the layers; the arguments are those of `JointBlocks`."""
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(config, shape, attention, conditions, single, theta=theta, **kinds)
        self.counts = config.num_layers, 0 if single is None else single[1]
        """Number of double and of single blocks."""
        out = partial(linear, shape.width, shape.width, ("embed", None))
        self.hint_in = linear(config.in_channels, shape.width, (None, "embed"), **kinds)
        self.double_out, self.single_out = (stack_any(out, count, **kinds) for count in self.counts)

    def residuals(
        self,
        latents: In,
        hint: In,
        text: In,
        modulations: BlockModulations,
        image_ids: np.ndarray,
        text_ids: np.ndarray,
        text_keys: Bool[Array, "batch text_tokens"] | None = None,
    ) -> ControlResiduals:
        """Return the residuals, padded, in the dtype of the weights.

        Args:
            hint: packed latents of the control image.
            text: embedded tokens.
            image_ids, text_ids: positions, [tokens, axes], on the host.
            text_keys: text tokens that count, row by row; None: all.
        """
        dtype = self.latents_in.kernel.dtype
        positions = self._positions(image_ids, text_ids, text_keys)
        image = self.latents_in(padded(latents, dtype)) + self.hint_in(padded(hint, dtype))
        text = padded(text, dtype)
        tokens = text.shape[1], image.shape[1]
        double = single = None
        if self.double_blocks is not None:
            vectors = (modulations.image, modulations.text)
            (image, text), inputs = _each(self.double_blocks, (image, text), vectors, positions)
            double = projected_states(
                self.double_out, outputs_of_blocks(inputs[0], image), lambda state: state
            )
        if self.single_blocks is not None:
            both = padded_tokens.join([text, image])
            both, inputs = _each(self.single_blocks, both, (modulations.single,), positions)
            states = outputs_of_blocks(inputs, both)
            single = projected_states(
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


def outputs_of_blocks(inputs: States, last: Tokens) -> States:
    """Return the output of each block, from the inputs of all blocks and the last output."""
    return jnp.concatenate([inputs[1:], last[None]])


def projected_states(
    out: nnx.Module | None, states: States, image: Callable[[Tokens], Tokens]
) -> Samples:
    """Project each state's image tokens by its output layer."""
    assert out is not None  # one layer per block
    first = jnp.zeros_like(image(states[0]))
    last, inputs = scan(out, first, lambda layer, _, state: layer(image(state)), states)
    return split(outputs_of_blocks(inputs, last).swapaxes(0, 1), "batch", None, "tokens", None)
