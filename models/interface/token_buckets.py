"""Token buckets: sizes that share the programs of their steps, their tokens padded to one count.

A row of a bucket has `extent`, its tokens along each axis as numbers, and what else is of its size
alone in the branch `of_size`, which its steps do not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from models.spec.model_spec import ModelSpec, Sizes

OF_SIZE = "of_size"
"""Branch of a row that encode and decode have by size, and steps never see."""
EXTENT = "extent"
"""Leaf of a row, and input of its encoding: frames, rows and columns of its tokens, int32, those
that there are."""
GRID = "grid"
"""Shape of a row's latents without its channels: an array without values, [*sizes, 0]."""
STRIDE = 16
"""Rungs are multiples of this, so that most layouts split them evenly."""
Tree = TypeVar("Tree", bound=Mapping[str, Any])


@dataclass(frozen=True)
class TokenBuckets:
    """Ladder of token counts. Arithmetic alone: it is the same on every worker."""

    anchor: int
    """Tokens of the model's default size, a rung: it is never padded."""
    most_extra: float
    """Work that a padded step may cost more, as a fraction of its own."""
    even: int
    """Tokens at which attention is as much work as all products: half a layer's parameters by its
    width, since of each token it has twice its parameters in operations, and 4 width tokens of
    attention."""

    def work(self, tokens: int | float) -> float:
        """Work of a step of so many tokens, in products of one token."""
        return tokens * (1 + tokens / self.even)

    def of(self, tokens: int) -> int:
        """Return the tokens that so many are padded to; as many, where the next rung is too far."""
        rung = self.anchor
        while rung < tokens:
            higher = self._above(rung)
            if higher <= rung:
                return tokens
            rung = higher
        while tokens <= (lower := self._below(rung)) < rung:
            rung = lower
        fits = self.work(rung) <= (1 + self.most_extra) * self.work(tokens)
        return rung if fits else tokens

    def _above(self, rung: int) -> int:
        """Return the most tokens whose work is not too much more; `rung` or less: none."""
        return math.floor(self._tokens(self.work(rung) * (1 + self.most_extra)) / STRIDE) * STRIDE

    def _below(self, rung: int) -> int:
        """Return the fewest tokens whose work is not too much less; `rung` or more: none."""
        return math.ceil(self._tokens(self.work(rung) / (1 + self.most_extra)) / STRIDE) * STRIDE

    def _tokens(self, work: float) -> float:
        """The inverse of `work`."""
        return self.even / 2 * (math.sqrt(1 + 4 * work / self.even) - 1)


def with_token_buckets(spec: ModelSpec, most_extra: float) -> ModelSpec:
    """Return the spec of a model whose sizes share steps; with 0 they don't."""
    if not most_extra:
        return spec
    return spec.model_copy(update={"sizes": Sizes(token_buckets=most_extra)})


def buckets_of(spec: ModelSpec, anchor: int, even: int) -> TokenBuckets | None:
    """Return the buckets of a model; None: it has none. Arguments as of `TokenBuckets`."""
    extra = spec.sizes.token_buckets
    return TokenBuckets(anchor, extra, even) if extra else None


def size_inputs(sizes: tuple[int, ...], patch: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return the inputs of `encode` that tell a row of a bucket its size.

    Args:
        sizes: of its latents.
        patch: of them that a token packs, along each axis.
    """
    extent = [size // packed for size, packed in zip(sizes, patch, strict=True)]
    return {
        EXTENT: np.array(extent, np.int32),
        f"{OF_SIZE}.{GRID}": np.zeros((*sizes, 0), np.float32),
    }


def size_leaves(inputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the branch of a row that steps don't see, of its inputs; empty: there is none."""
    beginning = f"{OF_SIZE}."
    own = {
        name.removeprefix(beginning): one
        for name, one in inputs.items()
        if name.startswith(beginning)
    }
    return {OF_SIZE: own} if own else {}


def shared_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that sizes of a bucket have in common."""
    return {name: one for name, one in inputs.items() if not name.startswith(f"{OF_SIZE}.")}


def shared_row(row: Any) -> Any:
    """Return a row as steps of a bucket take it."""
    if not isinstance(row, Mapping) or OF_SIZE not in row:
        return row
    return {name: leaf for name, leaf in row.items() if name != OF_SIZE}


def grid_of(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a row's latents, without their channels."""
    sizes: tuple[int, ...] = row.get(OF_SIZE, row)[GRID].shape[:-1]
    return sizes


def padded_to(tokens: int, x: Any) -> Any:
    """Return packed latents with zeros behind them, to so many tokens; on the host or not."""
    numpy = np if isinstance(x, np.ndarray) else jnp
    behind = [(0, tokens - len(x)), *[(0, 0)] * (x.ndim - 1)]
    return numpy.pad(x, behind) if tokens > len(x) else x
