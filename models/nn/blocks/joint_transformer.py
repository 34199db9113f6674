"""Transformer of double blocks, then single ones, between the layers in and out of it.

Flux's families have it in common; they differ in their layers and in what modulates them.

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
from jaxtyping import Array, Bool, Float

from models.nn.attention.attention import TokenAttention
from models.nn.blocks.double_stream import (
    AXES,
    DoubleBlock,
    Streams,
    StreamShape,
    Tokens,
    joined_positions,
    keys_of_rows,
    one_by_one,
    padded,
)
from models.nn.layers import padded_tokens
from models.nn.layers.norms import Modulation, modulate
from models.nn.layers.padded_tokens import Positions, join_positions
from models.nn.layers.parameterised import Kinds, linear
from models.nn.layers.row_grids import RowGrids
from models.nn.layers.scanned import each, layers_of, run, stack
from models.nn.layers.step_cache import CachedStep
from models.parallel.placement import split

OfLayers = Float[Array, "batch layers _vectors width"]
Block = TypeVar("Block", bound=nnx.Module)

After = Callable[[Array, Any], Any]

OF_STREAM, OF_SINGLE, OF_OUTPUT = 6, 3, 2
"""Vectors of one layer: shift, scale and gate, of a stream twice; the last norm has no gate."""


class Modulations(NamedTuple):
    """Modulations of every block, for a batch; None where the network has no block of that kind.

    All layers share the vectors of the only one where there is one alone.
    """

    image: OfLayers | None
    text: OfLayers | None
    single: OfLayers | None
    out: Float[Array, "batch vectors width"]


Places = tuple[int, ...]
"""Numbers by block: which of several arrays is its own."""
Arrays = Mapping[Places, Float[Array, "_rows _arrays _tokens width"]]


class Added(NamedTuple):
    """Arrays to add to the image's tokens behind blocks, by the places of theirs; padded.

    All prompts of a row have the same.
    """

    double: Arrays
    single: Arrays


@runtime_checkable
class JointConfig(Protocol):
    """Config of such a transformer."""

    @property
    def in_channels(self) -> int:
        """Channels of a token of latents."""

    @property
    def joint_attention_dim(self) -> int:
        """Width of the text's features."""

    @property
    def num_layers(self) -> int:
        """Number of double blocks."""

    @property
    def axes_dims_rope(self) -> tuple[int, ...]:
        """Head dimensions turned by each axis of a token's position."""


MakeSingle = Callable[..., Any]
"""Make a block of one stream: (tokens, vectors, positions) → tokens."""


class JointTransformer(nnx.Module):
    """Latents and text to velocity, told by modulations of time and whatever else there is."""

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
        """Build it.

        Args:
            conditions: make what modulates the blocks, of the config.
            single: its single blocks, and their number; None: there are none.
            theta: base of the positions' frequencies.
            out_channels: of a token's velocity; None: as many as come in.
        """
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        dense = partial(linear, use_bias=shape.use_bias, **kinds)

        def blocks(kind: Callable[..., Block], layers: int) -> Block | None:
            made = partial(kind, shape, attention, param_dtype=param_dtype)
            return stack_any(lambda rngs: made(rngs=rngs), layers, rngs)

        self.config, self.epsilon = config, shape.epsilon
        self.axes_dims, self.theta = config.axes_dims_rope, theta
        self.latents_in = dense(config.in_channels, shape.width, (None, "embed"))
        self.text_in = dense(config.joint_attention_dim, shape.width, (None, "embed"))
        self.conditions = conditions(config, **kinds)
        self.double_blocks = blocks(DoubleBlock, config.num_layers)
        self.single_blocks = None if single is None else blocks(*single)
        channels = config.in_channels if out_channels is None else out_channels
        self.latents_out = dense(shape.width, channels, ("embed", None))

    def velocity(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        modulations: Modulations,
        image_ids: np.ndarray | RowGrids,
        text_ids: np.ndarray,
        cache: CachedStep | None = None,
        text_keys: Bool[Array, "batch text_tokens"] | None = None,
        drawn: int | None = None,
        added: Added | None = None,
    ) -> Float[Array, "batch image_tokens velocity"]:
        """Velocity of the latents, in the dtype of the weights.

        Args:
            modulations: of the timestep, and whatever else the network is told.
            image_ids, text_ids: positions, [tokens, axes], on the host: they are part of the shape;
                of an image also the grids of rows that are padded, and have no cache.
            cache: of earlier steps, where most blocks may be left out.
            text_keys: text tokens that count, row by row; None: all.
            drawn: image tokens in front, which the first half of the image's vectors modulates,
                and the second half the others; None: the same vectors modulate all.
            added: by ControlNets; None: there are none.
        """
        dtype = self.latents_in.kernel.dtype
        positions = self._positions(image_ids, text_ids, text_keys)._replace(drawn=drawn)
        image, text = (padded(x, dtype) for x in (latents, prompt_embeds))
        streams = self.latents_in(image), self.text_in(text)
        if cache is None:
            image = self._run(streams, modulations, positions, added)
        else:
            image = self._run_cached(cache, streams, modulations, positions, added)
        scale, shift = one_by_one(modulations.out)
        velocity = self.latents_out(modulate(image, shift, scale, self.epsilon))
        return velocity[:, : latents.shape[1]]

    def _positions(
        self,
        image_ids: np.ndarray | RowGrids,
        text_ids: np.ndarray,
        text_keys: Bool[Array, "batch text_tokens"] | None,
    ) -> Positions:
        """Return the positions of text and image, joined, and the keys that count."""
        rotated = self.axes_dims, self.theta
        if isinstance(image_ids, RowGrids):
            text = joined_positions((text_ids,), *rotated)
            if text_keys is not None:
                text = text._replace(keys=padded_tokens.pad(text_keys))
            return join_positions([text, image_ids.positions(*rotated)])
        positions = joined_positions((text_ids, image_ids), *rotated)
        if text_keys is None:
            return positions
        return positions._replace(keys=keys_of_rows(text_keys, len(image_ids)))

    def _run(
        self,
        streams: Streams,
        modulations: Modulations,
        positions: Positions,
        added: Added | None = None,
        first: int = 0,
    ) -> Tokens:
        """The image's tokens behind all blocks, from that double block on."""
        image, text = self._run_double(streams, modulations, positions, added, first)
        both, tokens = padded_tokens.join([text, image]), (text.shape[1], image.shape[1])
        after = None if added is None else partial(_add_to_both, added.single, tokens)
        both = _run(self.single_blocks, both, (modulations.single,), positions, after=after)
        return padded_tokens.cut(both, *tokens)[1]

    def _run_double(
        self,
        streams: Streams,
        modulations: Modulations,
        positions: Positions,
        added: Added | None,
        first: int = 0,
        stop: int | None = None,
    ) -> Streams:
        """Both streams behind the double blocks, from one on, up to another."""
        of_streams = modulations.image, modulations.text
        after = None if added is None else partial(_add_to_image, added.double)
        found: Streams = _run(
            self.double_blocks, streams, of_streams, positions, first, stop, after
        )
        return found

    def _run_cached(
        self,
        cache: CachedStep,
        streams: Streams,
        modulations: Modulations,
        positions: Positions,
        added: Added | None,
    ) -> Tokens:
        # a family offers no cache without any
        assert self.double_blocks is not None and modulations.image is not None
        blocks, of_image, (image, _) = self.double_blocks, modulations.image, streams

        def behind_first() -> tuple[Streams, Tokens]:
            behind = self._run_double(streams, modulations, positions, added, stop=1)
            return behind, behind[0]

        def seen() -> Tokens:
            own = by_layer(of_image, layers_of(blocks))
            return run(blocks, image, lambda b, x, own: b.seen(x, own, positions), own, stop=1)

        entered = cache.entered(streams, image, behind_first, seen)
        of_rows = positions.keys if isinstance(positions.keys, jax.Array) else None

        def rest(
            streams: Streams, others: tuple[Modulations, Array | None, Added | None]
        ) -> Tokens:
            modulations, keys, added = others
            own = positions if keys is None else positions._replace(keys=keys)
            return self._run(streams, modulations, own, added, cache.first)

        return cache.run(entered, (modulations, of_rows, added), rest)


def vectors_of(stacked: Modulation, vector: Float[Array, "batch width"]) -> OfLayers:
    """Return the vectors that modulate stacked layers."""
    return each(stacked, lambda modulation: modulation(vector)).swapaxes(0, 1)


def stack_any(make: Callable[[nnx.Rngs], Block], layers: int, rngs: nnx.Rngs) -> Block | None:
    """Stack blocks of one kind, or return None: a checkpoint may do without either kind."""
    return stack(make, layers, rngs) if layers else None


def _run(
    blocks: nnx.Module | None,
    carry: Any,
    modulations: tuple[OfLayers | None, ...],
    positions: Positions,
    first: int = 0,
    stop: int | None = None,
    after: After | None = None,
) -> Any:
    """Run blocks of one kind.

    Args:
        modulations: of all blocks, None where there are none.
        after: changes what a block of that number returns.
    """
    if blocks is None:
        return carry
    layers = layers_of(blocks)
    own = [by_layer(vectors, layers) for vectors in modulations if vectors is not None]

    def apply(block: Any, x: Any, *own: Array) -> Any:
        return block(x, *own, positions)

    if after is None:
        return run(blocks, carry, apply, *own, first=first, stop=stop)

    def both(block: Any, x: Any, number: Array, *own: Array) -> Any:
        return after(number, apply(block, x, *own))

    return run(blocks, carry, both, jnp.arange(layers), *own, first=first, stop=stop)


def _add_to_image(arrays: Arrays, number: Array, streams: Streams) -> Streams:
    """Add a block's own arrays to the image behind a double block."""
    image, text = streams
    for own in _of_block(arrays, number, len(image)):
        image = image + own.astype(image.dtype)
    return split(image, *AXES), text


def _add_to_both(arrays: Arrays, tokens: tuple[int, int], number: Array, both: Tokens) -> Tokens:
    """Add a block's own arrays to the image in the joined stream.

    Args:
        tokens: of text and image.
    """
    for own in _of_block(arrays, number, len(both)):
        text = jnp.zeros((len(both), tokens[0], both.shape[2]), both.dtype)
        both = both + padded_tokens.join([text, own.astype(both.dtype)])
    return split(both, *AXES)


def _of_block(arrays: Arrays, number: Array, batch: int) -> list[Tokens]:
    """Return the arrays of a block, for each prompt of each row."""
    found = []
    for places, rows in arrays.items():
        own = jax.lax.dynamic_index_in_dim(rows, jnp.asarray(places)[number], 1, keepdims=False)
        found.append(jnp.repeat(own, batch // len(own), axis=0))
    return found


def by_layer(
    vectors: Float[Array, "batch _one_or_layers vectors width"], layers: int
) -> Float[Array, "layers batch vectors width"]:
    """Return vectors with the layers first."""
    first = jnp.swapaxes(vectors, 0, 1)
    return jnp.broadcast_to(first, (layers, *first.shape[1:]))
