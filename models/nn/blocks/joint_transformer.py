"""Transformer of double blocks, then single ones, between the layers in and out of it.

Flux's families have it in common; they differ in their layers and in what modulates them.

Source: Black Forest Labs, FLUX.1 (flux/model.py), in the parametrisation of diffusers'
FluxTransformer2DModel. Blocks are stacked and scanned (models/nn/layers/scanned.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from models.nn.blocks.double_stream import (
    AXES,
    DoubleBlock,
    Streams,
    Tokens,
    joined_positions,
    keys_of_rows,
    one_by_one,
)
from models.nn.layers import padded_tokens
from models.nn.layers.norms import modulate
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Linear
from models.nn.layers.scanned import layers_of, scan, stack
from models.nn.layers.step_cache import CachedStep, Entered
from models.parallel.placement import split

OfLayers = Float[Array, "batch layers _vectors width"]
Block = TypeVar("Block", bound=nnx.Module)

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


class JointTransformer(nnx.Module):
    """Latents and text to velocity, told by modulations of time and whatever else there is.

    A family's own fills in the layers.
    """

    latents_in: Linear
    text_in: Linear
    double_blocks: DoubleBlock | None
    single_blocks: Any
    """Stacked blocks of one stream: (tokens, vectors, positions) → tokens; None: there are none."""
    latents_out: Linear
    axes_dims: tuple[int, ...]
    """Head dimensions turned by each axis of a token's position."""
    theta: float
    epsilon: float

    def velocity(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        prompt_embeds: Float[Array, "batch text_tokens joint"],
        modulations: Modulations,
        image_ids: np.ndarray,
        text_ids: np.ndarray,
        cache: CachedStep | None = None,
        text_keys: Bool[Array, "batch text_tokens"] | None = None,
        drawn: int | None = None,
    ) -> Float[Array, "batch image_tokens velocity"]:
        """Velocity of the latents, in the dtype of the weights.

        Args:
            modulations: of the timestep, and whatever else the network is told.
            image_ids, text_ids: positions, [tokens, axes], on the host: they are part of the shape.
            cache: of earlier steps, where most blocks may be left out.
            text_keys: text tokens that count, row by row; None: all.
            drawn: image tokens in front, which the first half of the image's vectors modulates,
                and the second half the others; None: the same vectors modulate all.
        """
        dtype = self.latents_in.kernel.dtype
        positions = joined_positions((text_ids, image_ids), self.axes_dims, self.theta)
        positions = positions._replace(drawn=drawn)
        if text_keys is not None:
            positions = positions._replace(keys=keys_of_rows(text_keys, len(image_ids)))
        image, text = (
            split(padded_tokens.pad(x.astype(dtype)), *AXES) for x in (latents, prompt_embeds)
        )
        streams = self.latents_in(image), self.text_in(text)
        if cache is None:
            image = self._run(streams, modulations, positions)
        else:
            image = self._run_cached(cache, streams, modulations, positions)
        scale, shift = one_by_one(modulations.out)
        velocity = self.latents_out(modulate(image, shift, scale, self.epsilon))
        return velocity[:, : latents.shape[1]]

    def _run(
        self, streams: Streams, modulations: Modulations, positions: Positions, first: int = 0
    ) -> Tokens:
        """The image's tokens behind all blocks, from that double block on."""
        of_streams = modulations.image, modulations.text
        image, text = _run(self.double_blocks, streams, of_streams, positions, first)
        both = padded_tokens.join([text, image])
        both = _run(self.single_blocks, both, (modulations.single,), positions)
        return padded_tokens.cut(both, text.shape[1], image.shape[1])[1]

    def _run_cached(
        self, cache: CachedStep, streams: Streams, modulations: Modulations, positions: Positions
    ) -> Tokens:
        # a family offers no cache without any
        assert self.double_blocks is not None and modulations.image is not None
        before, _ = streams
        first = 1 if cache.kind == "first-block" else 0
        if first:
            of_streams = modulations.image, modulations.text
            streams = _run(self.double_blocks, streams, of_streams, positions, stop=first)
            signal = streams[0] - before
        else:
            signal, _ = scan(
                self.double_blocks,
                before,
                lambda block, x, of_image: block.seen(x, of_image, positions),
                _by_layer(modulations.image, layers_of(self.double_blocks)),
                between=(0, 1),
            )
        of_rows = positions.keys if isinstance(positions.keys, jax.Array) else None

        def rest(streams: Streams, others: tuple[Modulations, Array | None]) -> Tokens:
            modulations, keys = others
            own = positions if keys is None else positions._replace(keys=keys)
            return self._run(streams, modulations, own, first)

        return cache.run(Entered(streams, streams[0], signal), (modulations, of_rows), rest)


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
) -> Any:
    """Args: modulations: of all blocks, None where there are none."""
    if blocks is None:
        return carry
    layers = layers_of(blocks)
    between = (first, stop or layers) if first or stop else None
    own = [_by_layer(vectors, layers) for vectors in modulations if vectors is not None]
    return scan(
        blocks, carry, lambda block, x, *own: block(x, *own, positions), *own, between=between
    )[0]


def _by_layer(
    vectors: Float[Array, "batch _one_or_layers vectors width"], layers: int
) -> Float[Array, "layers batch vectors width"]:
    """Return vectors with the layers first."""
    first = jnp.swapaxes(vectors, 0, 1)
    return jnp.broadcast_to(first, (layers, *first.shape[1:]))
