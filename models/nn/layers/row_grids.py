"""Grids of rows that differ in size: positions of their tokens, padded to one count.

What other networks have of a static shape is data here, so that one program serves all sizes.
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
    """Grids of a batch's rows, each of which fills the first of its tokens."""

    extents: Int[Array, "batch axes"]
    """Tokens along each axis, the last of which runs fastest."""
    tokens: int
    """Tokens of each row, with padding."""
    most: int
    """Tokens along an axis at the most."""

    @property
    def counted(self) -> Bool[Array, "batch tokens"]:
        """Return the tokens that are no padding."""
        return jnp.arange(self.tokens) < self.extents.prod(axis=1)[:, None]

    def zeroed(
        self, x: Float[Array, "batch prompts _length *rest"]
    ) -> Float[Array, "batch prompts _length *rest"]:
        """Return what rows have of each token, and zero of padding.

        Args:
            x: of each token one or several entries.
        """
        own = self.counted[:, None, :, None]
        by_token = x.reshape(*x.shape[:2], self.tokens, -1)
        return jnp.where(own, by_token, 0).reshape(x.shape)

    def repeated(self, times: int) -> RowGrids:
        """Return each row so many times in a row."""
        return self._replace(extents=jnp.repeat(self.extents, times, axis=0))

    def positions(self, axes_dims: tuple[int, ...], theta: float = 10_000.0) -> Positions:
        """Return the positions of tokens that are padded to equal shares.

        Axes in front of the grid's are at 0. Angles are looked up in tables as `rope_table` has
        them, so that they are the same to the bit as those of a static size.
        """
        behind = ((0, 0), (0, padded_tokens.padding(self.tokens)))
        tables = [rope_table(np.arange(self.most)[:, None], (dim,), theta) for dim in axes_dims]
        rope = [
            jnp.concatenate(
                [
                    jnp.asarray(table).at[place].get(mode="clip")
                    for table, place in zip(of_axes, self._places(len(axes_dims)), strict=True)
                ],
                axis=-1,
            )
            for of_axes in zip(*tables, strict=True)
        ]
        return Positions(RopeTable(*rope), jnp.pad(self.counted, behind))

    def _places(self, axes: int) -> list[Int[Array, "batch tokens"]]:
        """Return the place of each token along each axis; of padding whichever."""
        left = jnp.arange(self.tokens + padded_tokens.padding(self.tokens))[None]
        found: list[Array] = []
        for size in jnp.unstack(self.extents, axis=1)[:0:-1]:
            left, place = jnp.divmod(left, size[:, None])
            found.insert(0, place)
        first = jnp.broadcast_to(left, (len(self.extents), left.shape[1]))
        found.insert(0, first)
        return [jnp.zeros_like(first)] * (axes - len(found)) + found
