"""Adapter as a model's layers take it, whatever its file was like."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32


class AdapterError(ValueError):
    """An adapter's file cannot be used with this model; says why, and names the keys."""


class Place(NamedTuple):
    """Layer of a network."""

    path: str
    """Path of its module, such as `double_blocks.image.attention.q`."""
    layer: int | None = None
    """Place in a stack of equal layers; None: it is in none."""


class KernelShape(NamedTuple):
    """KernelShape of a layer's kernel."""

    in_features: int
    out_features: int
    window: tuple[int, ...] = ()
    """Window of a convolution; empty: the layer is linear."""


@dataclass(frozen=True)
class LowRank:
    """Change of one layer: y += scale · (up(down(x)) + bias), scale being the request's."""

    down: Float32[np.ndarray, "rank in_features *window"]
    up: Float32[np.ndarray, "out_features rank"]
    """Matrix that is multiplied by alpha / rank already."""
    bias: Float32[np.ndarray, " out_features"] | None = None

    @property
    def rank(self) -> int:
        """Ranks, as many as the file has."""
        return self.up.shape[1]


Changes = Mapping[Place, LowRank]


@dataclass(frozen=True)
class Adapter:
    """Changes of a model's networks."""

    networks: Mapping[str, Changes]
    """Changes by the network's name in the pipeline's weights; none is empty."""
    ignored: tuple[str, ...] = ()
    """Keys of the file that have no effect, as they have none in diffusers."""

    @property
    def rank(self) -> int:
        """The highest rank of a layer."""
        return max(change.rank for change in self._changes())

    def pages(self, page_rank: int) -> int:
        """Return how many pages of so many ranks it takes in a bank."""
        return max(1, math.ceil(self.rank / page_rank))

    def _changes(self) -> Iterable[LowRank]:
        return (change for changes in self.networks.values() for change in changes.values())
