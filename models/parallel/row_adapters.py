"""Adapters of a batch's rows: the bank pages that each row reads, and their scales."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


class AdapterPages(nnx.Param[Any]):
    """Parameter of an adapter bank (models/nn/layers/adapter_bank.py).

    Its values change as adapters are loaded and removed.
    """


class RowAdapters(NamedTuple):
    """Adapter pages and scales of each row; unused entries have a scale of 0."""

    pages: Int[Array, "rows pages"]
    """Indices of pages in the bank (models/nn/layers/adapter_bank.py)."""
    scales: Float[Array, "rows pages"]
    owners: Int[Array, "rows pages"] | None = None
    """Position, among the row's pages, of the page with the magnitudes of each page's adapter
    (DoRA); -1: none. None: no row has such an adapter."""

    def of_batch(self, batch: int) -> RowAdapters:
        """Repeat the entries for a batch that contains each row several times, adjacently.

        Networks receive the prompts of a row, and the strips of its image, in this order.
        """
        times = batch // len(self.pages)
        return RowAdapters(
            jnp.repeat(self.pages, times, axis=0),
            jnp.repeat(self.scales, times, axis=0),
            None if self.owners is None else jnp.repeat(self.owners, times, axis=0),
        )
