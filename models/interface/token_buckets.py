"""Token buckets: sizes that share step programs by padding their tokens to a common count.

A row of a bucket contains `extent`, its tokens along each axis. Its branch `of_size` contains what
depends on its exact size; steps do not read that branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.spec.model_spec import ModelSpec, Sizes

OF_SIZE = "of_size"
"""Branch of a row that only encode and decode read, since it depends on the size."""
EXTENT = "extent"
"""Leaf of a row and input of `encode`: frames, rows and columns of its tokens without padding,
int32."""
GRID = "grid"
"""Shape of a row's latents without channels, stored as an empty array [*sizes, 0]."""
STRIDE = 16
"""Multiple of each rung, so that most layouts split rungs evenly."""


@dataclass(frozen=True)
class TokenBuckets:
    """Ladder of token counts, a pure function of its fields and thus equal on every worker."""

    anchor: int
    """Tokens of the model's default size, which is a rung and thus never padded."""
    max_extra_work: float
    """Maximum extra work of a padded step, as a fraction of the unpadded step."""
    break_even_tokens: int
    """Number of tokens at which attention costs as much as all matrix products. Equals a layer's
    parameters divided by twice its width: a token costs 2 operations per parameter, and 4 x width x
    tokens of attention."""

    def work(self, tokens: int | float) -> float:
        """Return the cost of a step with that many tokens, relative to one token's products."""
        return tokens * (1 + tokens / self.break_even_tokens)

    def padded_tokens(self, tokens: int) -> int:
        """Return the padded token count, or the count itself if the next rung is too far."""
        rung = self.anchor
        while rung < tokens:
            higher = self._above(rung)
            if higher <= rung:
                return tokens
            rung = higher
        while tokens <= (lower := self._below(rung)) < rung:
            rung = lower
        fits = self.work(rung) <= (1 + self.max_extra_work) * self.work(tokens)
        return rung if fits else tokens

    def _above(self, rung: int) -> int:
        """Return the next larger bucket within the allowed extra work; at most `rung` if none."""
        return (
            math.floor(self._tokens(self.work(rung) * (1 + self.max_extra_work)) / STRIDE) * STRIDE
        )

    def _below(self, rung: int) -> int:
        """Return the next smaller bucket within the allowed extra work; at least `rung` if none."""
        return (
            math.ceil(self._tokens(self.work(rung) / (1 + self.max_extra_work)) / STRIDE) * STRIDE
        )

    def _tokens(self, work: float) -> float:
        """Return the number of tokens whose step has that cost: the inverse of `work`."""
        return self.break_even_tokens / 2 * (math.sqrt(1 + 4 * work / self.break_even_tokens) - 1)


def with_token_buckets(spec: ModelSpec, max_extra_work: float) -> ModelSpec:
    """Return a spec whose sizes share steps; unchanged if `max_extra_work` is 0."""
    if not max_extra_work:
        return spec
    return spec.model_copy(update={"sizes": Sizes(token_buckets=max_extra_work)})


def buckets_of(spec: ModelSpec, anchor: int, break_even_tokens: int) -> TokenBuckets | None:
    """Return a model's token buckets; None: disabled. Arguments as in `TokenBuckets`.

    Raises: ValueError: the model has ControlNets.
    """
    extra = spec.sizes.token_buckets
    if extra and spec.controls:
        raise ValueError(
            "token_buckets: not supported with ControlNets, which need a fixed size; remove one"
        )
    return TokenBuckets(anchor, extra, break_even_tokens) if extra else None


def size_inputs(sizes: tuple[int, ...], patch: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return the inputs of `encode` that describe a row's size within its bucket.

    Args:
        sizes: of the latents.
        patch: latents per token along each axis.
    """
    extent = [size // packed for size, packed in zip(sizes, patch, strict=True)]
    return {
        EXTENT: np.array(extent, np.int32),
        f"{OF_SIZE}.{GRID}": np.zeros((*sizes, 0), np.float32),
    }


def size_leaves(inputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Extract a row's `of_size` branch from the inputs; empty without token buckets."""
    beginning = f"{OF_SIZE}."
    branch = {
        name.removeprefix(beginning): value
        for name, value in inputs.items()
        if name.startswith(beginning)
    }
    return {OF_SIZE: branch} if branch else {}


def size_of_row(
    inputs: Mapping[str, Any], as_grid: Callable[[jax.Array], jax.Array]
) -> dict[str, jax.Array]:
    """Return the leaf of a row that describes its size: `extent` in token buckets, else `grid`.

    Args:
        as_grid: function from the noise to the grid.
    """
    return {EXTENT: inputs[EXTENT]} if EXTENT in inputs else {GRID: as_grid(inputs["noise"])}


def shared_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs common to all sizes of a bucket."""
    return {name: value for name, value in inputs.items() if not name.startswith(f"{OF_SIZE}.")}


def shared_row(row: Any) -> Any:
    """Return a row without its `of_size` branch, as steps receive it."""
    if not isinstance(row, Mapping) or OF_SIZE not in row:
        return row
    return {name: leaf for name, leaf in row.items() if name != OF_SIZE}


def grid_of(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a row's latents, without channels."""
    sizes: tuple[int, ...] = row.get(OF_SIZE, row)[GRID].shape[:-1]
    return sizes


def padded_to(tokens: int, x: Any) -> Any:
    """Append zeros to packed latents up to that token count, with NumPy or JAX."""
    numpy = np if isinstance(x, np.ndarray) else jnp
    padding = [(0, tokens - len(x)), *[(0, 0)] * (x.ndim - 1)]
    return numpy.pad(x, padding) if tokens > len(x) else x
