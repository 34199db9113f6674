"""Transformer of double-stream blocks, then single-stream ones: Flux, FLUX.2 and Qwen-Image.

The families differ in their layers and in what computes their modulations.

Source: Black Forest Labs, FLUX.1 (flux/model.py), in the parametrisation of diffusers'
FluxTransformer2DModel. Blocks are stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from models.nn.attention.attention import TokenAttention
from models.nn.blocks.double_stream import (
    AXES,
    DoubleBlock,
    Streams,
    StreamShape,
    Tokens,
    joined_positions,
    keys_of_rows,
    padded,
    split_vectors,
)
from models.nn.layers import padded_tokens
from models.nn.layers.norms import Modulation, modulate
from models.nn.layers.padded_tokens import Positions, join_positions
from models.nn.layers.parameterised import Kinds, linear
from models.nn.layers.row_grids import RowGrids, looked_up
from models.nn.layers.scanned import each, layers_of, run, stack_any
from models.nn.layers.step_cache import CachedStep
from models.parallel.placement import split

OfLayers = Float[Array, "batch layers _vectors width"]
Block = TypeVar("Block", bound=nnx.Module)

After = Callable[[Array, Any], Any]

OF_STREAM, OF_SINGLE, OF_OUTPUT = 6, 3, 2
"""Modulation vectors of one layer: shift, scale and gate, twice for a stream; the last norm has no
gate."""


class Modulations(NamedTuple):
    """Modulations of every block, for a batch; None for a kind of block that the network lacks.

    Vectors with a layer axis of 1 are shared by all layers.
    """

    image: OfLayers | None
    text: OfLayers | None
    single: OfLayers | None
    out: Float[Array, "batch vectors width"]


class BlockModulations(NamedTuple):
    """Modulations of all blocks; None for block kinds that the network does not have."""

    image: OfLayers | None
    text: OfLayers | None
    single: OfLayers | None


BlockIndices = tuple[int, ...]
"""Index by block into several arrays."""
Arrays = Mapping[BlockIndices, Float[Array, "_rows _arrays _tokens width"]]


class ControlArrays(NamedTuple):
    """ControlNet arrays to add to the image's tokens after blocks, by the blocks' indices.

    Arrays are padded, and the same for all prompts of a row.
    """

    double: Arrays
    single: Arrays


@runtime_checkable
class JointConfig(Protocol):
    """Properties that `JointTransformer` reads from a family's config."""

    @property
    def in_channels(self) -> int:
        """Channels of a token of latents."""

    @property
    def joint_attention_dim(self) -> int:
        """Width of the text's features."""

    @property
    def num_layers(self) -> int:
        """Number of double blocks of the transformer."""

    @property
    def axes_dims_rope(self) -> tuple[int, ...]:
        """Head dimensions rotated by each axis of a token's position."""


MakeSingle = Callable[..., Any]
"""Function that builds a single-stream block: (tokens, vectors, positions) → tokens."""


class JointBlocks(nnx.Module):
    """Input layers, conditions and blocks, which a transformer and its ControlNets share."""

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
        """Create the layers.

        Args:
            conditions: builds, from the config, the module that computes modulations.
            single: builder of the single blocks, and their number; None: no single blocks.
            theta: base of the positions' frequencies.
        """
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        dense = partial(linear, use_bias=shape.use_bias, **kinds)

        def blocks(kind: Callable[..., Block], layers: int) -> Block | None:
            return stack_any(partial(kind, shape, attention), layers, **kinds)

        self.config, self.epsilon = config, shape.epsilon
        self.axes_dims, self.theta = config.axes_dims_rope, theta
        self.latents_in = dense(config.in_channels, shape.width, (None, "embed"))
        self.text_in = dense(config.joint_attention_dim, shape.width, (None, "embed"))
        self.conditions = conditions(config, **kinds)
        self.double_blocks = blocks(DoubleBlock, config.num_layers)
        self.single_blocks = None if single is None else blocks(*single)

    def _positions(
        self,
        image_ids: np.ndarray | RowGrids,
        text_ids: np.ndarray | Int[Array, "batch text_tokens axes"],
        text_keys: Bool[Array, "batch text_tokens"] | None,
    ) -> Positions:
        """Return the positions of text and image, joined, and the keys that count."""
        rotated = self.axes_dims, self.theta
        if isinstance(image_ids, RowGrids):
            text = self._text_positions(text_ids, image_ids.most)
            if text_keys is not None:
                text = text._replace(keys=padded_tokens.pad(text_keys))
            return join_positions([text, image_ids.positions(*rotated)])
        assert isinstance(text_ids, np.ndarray), "positions of one size are static"
        positions = joined_positions((text_ids, image_ids), *rotated)
        if text_keys is None:
            return positions
        return positions._replace(keys=keys_of_rows(text_keys, len(image_ids)))

    def _text_positions(
        self, ids: np.ndarray | Int[Array, "batch text_tokens axes"], most: int
    ) -> Positions:
        """Return the positions of text next to padded images.

        Args:
            most: maximum position of the first token.
        """
        if isinstance(ids, np.ndarray):
            return joined_positions((ids,), self.axes_dims, self.theta)
        places = jnp.unstack(padded_tokens.pad(ids), axis=2)
        span = (0, most + ids.shape[1])
        return Positions(looked_up(places, span, self.axes_dims, self.theta), None)


class JointTransformer(JointBlocks):
    """Transformer from latents and text to velocity, modulated by time and other conditioning."""

    def __init__(
        self,
        config: JointConfig,
        shape: StreamShape,
        attention: TokenAttention,
        conditions: Callable[..., Any],
        single: tuple[MakeSingle, int] | None = None,
        *,
        theta: float,
        out_channels: int | None = None,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        """Create the layers of the transformer.

        Args:
            out_channels: channels of a token's velocity; None: those of the latents.
            Others as of `JointBlocks`.
        """
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(config, shape, attention, conditions, single, theta=theta, **kinds)
        channels = config.in_channels if out_channels is None else out_channels
        out = partial(linear, use_bias=shape.use_bias, **kinds)
        self.latents_out = out(shape.width, channels, ("embed", None))

    def velocity(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        modulations: Modulations,
        image_ids: np.ndarray | RowGrids,
        text_ids: np.ndarray | Int[Array, "batch text_tokens axes"],
        cache: CachedStep | None = None,
        text_keys: Bool[Array, "batch text_tokens"] | None = None,
        generated_tokens: int | None = None,
        control_arrays: ControlArrays | None = None,
    ) -> Float[Array, "batch image_tokens velocity"]:
        """Compute the velocity of the latents, in the dtype of the weights.

        Args:
            modulations: modulations of the timestep and other conditioning.
            image_ids, text_ids: positions, [tokens, axes], on the host: they are part of the shape.
            Of padded rows, which have no cache, the image's are grids, and the text's may be data.
            cache: caches of earlier steps, with which most blocks may be skipped.
            text_keys: text tokens that count, row by row; None: all.
            generated_tokens: leading image tokens that the first half of the image's vectors
                modulates; the second half modulates the others. None: the same vectors modulate
                all.
            control_arrays: arrays of ControlNets; None: there are none.
        """
        dtype = self.latents_in.kernel.dtype
        positions = self._positions(image_ids, text_ids, text_keys)._replace(
            generated_tokens=generated_tokens
        )
        image, text = (padded(x, dtype) for x in (latents, prompt_embeds))
        streams = self.latents_in(image), self.text_in(text)
        if cache is None:
            image = self._run(streams, modulations, positions, control_arrays)
        else:
            image = self._run_cached(cache, streams, modulations, positions, control_arrays)
        scale, shift = split_vectors(modulations.out)
        velocity = self.latents_out(modulate(image, shift, scale, self.epsilon))
        return velocity[:, : latents.shape[1]]

    def _run(
        self,
        streams: Streams,
        modulations: Modulations,
        positions: Positions,
        control_arrays: ControlArrays | None = None,
        first: int = 0,
    ) -> Tokens:
        """Run all blocks from double block `first` on; return the image's tokens."""
        image, text = self._run_double(streams, modulations, positions, control_arrays, first)
        both, tokens = padded_tokens.join([text, image]), (text.shape[1], image.shape[1])
        after = (
            None if control_arrays is None else partial(_add_to_both, control_arrays.single, tokens)
        )
        both = _run(self.single_blocks, both, (modulations.single,), positions, after=after)
        return padded_tokens.cut(both, *tokens)[1]

    def _run_double(
        self,
        streams: Streams,
        modulations: Modulations,
        positions: Positions,
        control_arrays: ControlArrays | None,
        first: int = 0,
        stop: int | None = None,
    ) -> Streams:
        """Run the double blocks from `first` to before `stop`; return both streams."""
        of_streams = modulations.image, modulations.text
        after = None if control_arrays is None else partial(_add_to_image, control_arrays.double)
        output: Streams = _run(
            self.double_blocks, streams, of_streams, positions, first, stop, after
        )
        return output

    def _run_cached(
        self,
        cache: CachedStep,
        streams: Streams,
        modulations: Modulations,
        positions: Positions,
        control_arrays: ControlArrays | None,
    ) -> Tokens:
        # families without double blocks offer no cache
        assert self.double_blocks is not None and modulations.image is not None
        blocks, of_image, (image, _) = self.double_blocks, modulations.image, streams

        def after_first() -> tuple[Streams, Tokens]:
            after = self._run_double(streams, modulations, positions, control_arrays, stop=1)
            return after, after[0]

        def attention_inputs() -> Tokens:
            inputs = by_layer(of_image, layers_of(blocks))
            return run(
                blocks,
                image,
                lambda b, x, inputs: b.attention_inputs(x, inputs, positions),
                inputs,
                stop=1,
            )

        block_inputs = cache.before_blocks(streams, image, after_first, attention_inputs)
        of_rows = positions.keys if isinstance(positions.keys, jax.Array) else None

        def rest(
            streams: Streams, others: tuple[Modulations, Array | None, ControlArrays | None]
        ) -> Tokens:
            modulations, keys, control_arrays = others
            inputs = positions if keys is None else positions._replace(keys=keys)
            return self._run(streams, modulations, inputs, control_arrays, cache.first)

        return cache.run(block_inputs, (modulations, of_rows, control_arrays), rest)


def vectors_of(stacked: Modulation, vector: Float[Array, "batch width"]) -> OfLayers:
    """Compute the modulations of stacked layers."""
    vectors: Array = each(stacked, lambda modulation: modulation(vector)).swapaxes(0, 1)
    return vectors


def _run(
    blocks: nnx.Module | None,
    carry: Any,
    modulations: tuple[OfLayers | None, ...],
    positions: Positions,
    first: int = 0,
    stop: int | None = None,
    after: After | None = None,
) -> Any:
    """Run the stacked blocks of one kind.

    Args:
        modulations: of all blocks; None if there are none.
        after: function that changes what a block of that number returns.
    """
    if blocks is None:
        return carry
    layers = layers_of(blocks)
    inputs = [by_layer(vectors, layers) for vectors in modulations if vectors is not None]

    def apply(block: Any, x: Any, *inputs: Array) -> Any:
        return block(x, *inputs, positions)

    if after is None:
        return run(blocks, carry, apply, *inputs, first=first, stop=stop)

    def both(block: Any, x: Any, number: Array, *inputs: Array) -> Any:
        return after(number, apply(block, x, *inputs))

    return run(blocks, carry, both, jnp.arange(layers), *inputs, first=first, stop=stop)


def _add_to_image(arrays: Arrays, number: Array, streams: Streams) -> Streams:
    """Add a double block's ControlNet residuals to the image stream."""
    image, text = streams
    for array in _of_block(arrays, number, len(image)):
        image = image + array.astype(image.dtype)
    return split(image, *AXES), text


def _add_to_both(arrays: Arrays, tokens: tuple[int, int], number: Array, both: Tokens) -> Tokens:
    """Add a single block's ControlNet residuals to the image's tokens in the joined stream.

    Args:
        tokens: number of text tokens, and of image tokens.
    """
    for array in _of_block(arrays, number, len(both)):
        text = jnp.zeros((len(both), tokens[0], both.shape[2]), both.dtype)
        both = both + padded_tokens.join([text, array.astype(both.dtype)])
    return split(both, *AXES)


def _of_block(arrays: Arrays, number: Array, batch: int) -> list[Tokens]:
    """Return the ControlNet residuals of a block, repeated for each prompt of each row."""
    output = []
    for places, rows in arrays.items():
        array = jax.lax.dynamic_index_in_dim(rows, jnp.asarray(places)[number], 1, keepdims=False)
        output.append(jnp.repeat(array, batch // len(array), axis=0))
    return output


def by_layer(
    vectors: Float[Array, "batch _one_or_layers vectors width"], layers: int
) -> Float[Array, "layers batch vectors width"]:
    """Move the layer axis of modulations to the front, and broadcast shared ones to all layers."""
    first = jnp.swapaxes(vectors, 0, 1)
    return jnp.broadcast_to(first, (layers, *first.shape[1:]))
