"""Grids of rows that differ in size: positions of their tokens, padded to one count.

The sizes are data here, and static shapes in other networks, so that one program serves all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from models.nn.layers import padded_tokens
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.rope import RopeTable, rope_table


class RowGrids(NamedTuple):
    """Grid sizes of a batch's rows, each of which fills the first of its tokens."""

    extents: Int[Array, "batch axes"]
    """Tokens along each axis; the last axis runs fastest."""
    tokens: int
    """Tokens of each row, including padding."""
    most: int
    """Maximum tokens along an axis."""
    first: Callable[[Array], Array] | None = None
    """Function from `extents` to the first token's position along each axis, at least -`most`;
    None: zeros."""
    after: int = 0
    """Number of axes after the grid's, along which all tokens are at 0."""

    @property
    def counted(self) -> Bool[Array, "batch tokens"]:
        """Mask of tokens that are not padding, for each row."""
        return jnp.arange(self.tokens) < self.extents.prod(axis=1)[:, None]

    def zeroed(
        self, x: Float[Array, "batch prompts _length *rest"]
    ) -> Float[Array, "batch prompts _length *rest"]:
        """Set the features of padding tokens to zero.

        Args:
            x: one or several entries per token.
        """
        mask = self.counted[:, None, :, None]
        by_token = x.reshape(*x.shape[:2], self.tokens, -1)
        return jnp.where(mask, by_token, 0).reshape(x.shape)

    def repeated(self, times: int) -> RowGrids:
        """Repeat each row's grid `times` times, in a row."""
        return self._replace(extents=jnp.repeat(self.extents, times, axis=0))

    def positions(self, axes_dims: tuple[int, ...], theta: float = 10_000.0) -> Positions:
        """Return the RoPE positions of each row's tokens, padded to equal shares.

        Axes before the grid's are at 0.
        """
        places = self.places()
        zeros = jnp.zeros_like(places[0])
        before = len(axes_dims) - len(places) - self.after
        places = [*[zeros] * before, *places, *[zeros] * self.after]
        least = 0 if self.first is None else -self.most
        rope = looked_up(places, (least, self.most), axes_dims, theta)
        return Positions(rope, padded_tokens.pad(self.counted))

    def places(self) -> list[Int[Array, "batch _padded"]]:
        """Return the position of each token along each axis of the grid.

        Tokens are padded to equal shares; padding has arbitrary positions.
        """
        left = jnp.arange(self.tokens + padded_tokens.padding(self.tokens))[None]
        positions: list[Array] = []
        for size in jnp.unstack(self.extents, axis=1)[:0:-1]:
            left, place = jnp.divmod(left, size[:, None])
            positions.insert(0, place)
        positions.insert(0, jnp.broadcast_to(left, (len(self.extents), left.shape[1])))
        if self.first is None:
            return positions
        origins = jnp.unstack(self.first(self.extents), axis=1)
        return [place + origin[:, None] for place, origin in zip(positions, origins, strict=True)]


def looked_up(
    places: Sequence[Int[Array, "batch tokens"]],
    span: tuple[int, int],
    axes_dims: Sequence[int],
    theta: float = 10_000.0,
) -> RopeTable:
    """Return the table of positions that are data, row by row: [batch, tokens, head_dim].

    Angles are looked up in tables of `rope_table`, so that they equal those of static positions to
    the bit.

    Args:
        places: positions along each axis.
        span: least position, and the one after the largest; others are clipped.
    """
    every = np.arange(*span)[:, None]
    tables = [rope_table(every, (dim,), theta) for dim in axes_dims]
    rope = [
        jnp.concatenate(
            [
                jnp.asarray(table).at[place - span[0]].get(mode="clip")
                for table, place in zip(of_axes, places, strict=True)
            ],
            axis=-1,
        )
        for of_axes in zip(*tables, strict=True)
    ]
    return RopeTable(*rope)
