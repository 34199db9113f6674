"""Grids of rows that differ in size: positions of their tokens, padded to one count.

The sizes are data here, and static shapes in other networks, so that one program serves all sizes.
"""

from __future__ import annotations

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

        Axes before the grid's are at 0. Angles are looked up in tables of `rope_table`, so that
        they equal those of a static size to the bit.
        """
        pad_widths = ((0, 0), (0, padded_tokens.padding(self.tokens)))
        tables = [rope_table(np.arange(self.most)[:, None], (dim,), theta) for dim in axes_dims]
        rope = [
            jnp.concatenate(
                [
                    jnp.asarray(table).at[place].get(mode="clip")
                    for table, place in zip(of_axes, self._positions(len(axes_dims)), strict=True)
                ],
                axis=-1,
            )
            for of_axes in zip(*tables, strict=True)
        ]
        return Positions(RopeTable(*rope), jnp.pad(self.counted, pad_widths))

    def _positions(self, axes: int) -> list[Int[Array, "batch tokens"]]:
        """Return the grid position of each token along each axis; arbitrary for padding."""
        left = jnp.arange(self.tokens + padded_tokens.padding(self.tokens))[None]
        positions: list[Array] = []
        for size in jnp.unstack(self.extents, axis=1)[:0:-1]:
            left, place = jnp.divmod(left, size[:, None])
            positions.insert(0, place)
        first = jnp.broadcast_to(left, (len(self.extents), left.shape[1]))
        positions.insert(0, first)
        return [jnp.zeros_like(first)] * (axes - len(positions)) + positions
