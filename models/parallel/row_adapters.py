"""Adapters of the rows of a batch: which pages of a bank each row reads, and how strongly."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


class AdapterPages(nnx.Param):
    """Parameter of a bank (models/nn/layers/adapter_bank.py), which adapters come to and leave."""


class RowAdapters(NamedTuple):
    """Pages and scales of each row; a page that a row does not need has a scale of 0."""

    pages: Int[Array, "rows pages"]
    """Places in the bank (models/nn/layers/adapter_bank.py)."""
    scales: Float[Array, "rows pages"]

    def of_batch(self, batch: int) -> RowAdapters:
        """Return the same for a batch that has each row several times, one behind the other.

        So networks see the prompts of a row, and the strips of its image.
        """
        times = batch // len(self.pages)
        return RowAdapters(*(jnp.repeat(one, times, axis=0) for one in self))
