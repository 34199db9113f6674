"""Adapter as a model's layers take it, whatever its file was like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from models.spec.lora import pages_of


class AdapterError(ValueError):
    """An adapter's file cannot be used with this model; says why, and names the keys."""


class Place(NamedTuple):
    """Layer of a network."""

    path: str
    """Path of its module, such as `double_blocks.image.attention.q`."""
    layer: int | None = None
    """Place in a stack of equal layers; None: it is in none."""


class KernelShape(NamedTuple):
    """Shape of a layer's kernel."""

    in_features: int
    out_features: int
    window: tuple[int, ...] = ()
    """Window of a convolution; empty: the layer is linear."""


@dataclass(frozen=True)
class Stored:
    """Numbers as a file has them: nothing is converted before it is used.

    Args:
        array: float32, float16, or the bits of bfloat16 as uint16.
    """

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, in PyTorch's order: outputs first."""
        return self.array.shape

    @property
    def is_bfloat16(self) -> bool:
        """True if `array` has the bits of bfloat16."""
        return self.array.dtype == np.uint16

    def __getitem__(self, index: Any) -> Stored:
        """Return a part of it."""
        return Stored(self.array[index])

    def float32(self) -> np.ndarray:
        """Return the numbers in float32."""
        if not self.is_bfloat16:
            return self.array.astype(np.float32, copy=False)
        return (self.array.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class LowRank:
    """Change of one layer: y += s · (scale · up(down(x)) + bias), s being the request's."""

    down: Stored
    """[rank, in, *window]."""
    up: Stored
    """[out, rank]."""
    scale: float = 1.0
    """Alpha / rank."""
    bias: Stored | None = None
    """[out]."""
    bias_scale: float = 1.0

    @property
    def rank(self) -> int:
        """Number of ranks."""
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

    @property
    def pages(self) -> int:
        """Number of pages that it takes in a bank."""
        return pages_of(self.rank)

    def _changes(self) -> Iterable[LowRank]:
        return (change for changes in self.networks.values() for change in changes.values())


@dataclass(frozen=True)
class Inspected:
    """Summary of an adapter's file, all of which has been checked."""

    rank: int
    """The highest rank of a layer."""
    networks: tuple[str, ...]
    """Names of the networks that it changes, in the pipeline's weights."""
    ignored: tuple[str, ...]
    """Keys of the file that have no effect, as they have none in diffusers."""
    bytes: int
    """Size of the file."""
