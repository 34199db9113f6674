"""Adapter contents in a common form, independent of the file's format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from models.spec.lora import pages_of


class AdapterError(ValueError):
    """Unusable adapter file; the message contains the reason and the keys."""


class LayerPosition(NamedTuple):
    """Position of a layer in a network."""

    path: str
    """Path of its module, such as `double_blocks.image.attention.q`."""
    layer: int | None = None
    """Index in a stack of equal layers; None: not stacked."""


class KernelShape(NamedTuple):
    """Shape of a layer's kernel."""

    in_features: int
    out_features: int
    window: tuple[int, ...] = ()
    """Window of a convolution; empty: a linear layer."""


@dataclass(frozen=True)
class StoredArray:
    """Array in the file's dtype, converted only on use.

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
        """True if `array` contains the bits of bfloat16."""
        return self.array.dtype == np.uint16

    def __getitem__(self, index: Any) -> StoredArray:
        """Return a part of the array."""
        return StoredArray(self.array[index])

    def float32(self) -> np.ndarray:
        """Return the values in float32."""
        if not self.is_bfloat16:
            return self.array.astype(np.float32, copy=False)
        return (self.array.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class LowRank:
    """Change of one layer: y += s · (scale · up(down(x)) + bias), with the request's scale s."""

    down: StoredArray
    """[rank, in, *window]."""
    up: StoredArray
    """[out, rank]."""
    scale: float = 1.0
    """Alpha / rank."""
    bias: StoredArray | None = None
    """[out]."""
    bias_scale: float = 1.0

    @property
    def rank(self) -> int:
        """Number of ranks."""
        return self.up.shape[1]


Changes = Mapping[LayerPosition, LowRank]


@dataclass(frozen=True)
class Adapter:
    """Changes of a model's networks by one adapter."""

    networks: Mapping[str, Changes]
    """Changes by network name in the pipeline's weights; each is non-empty."""
    ignored: tuple[str, ...] = ()
    """Keys of the file without effect, as in diffusers."""

    @property
    def rank(self) -> int:
        """Highest rank of a layer."""
        return max(change.rank for change in self._changes())

    @property
    def pages(self) -> int:
        """Number of bank pages that the adapter occupies."""
        return pages_of(self.rank)

    def _changes(self) -> Iterable[LowRank]:
        return (change for changes in self.networks.values() for change in changes.values())


@dataclass(frozen=True)
class AdapterSummary:
    """Summary of an adapter's file after full validation."""

    rank: int
    """Highest rank of a layer."""
    networks: tuple[str, ...]
    """Names of the changed networks in the pipeline's weights."""
    ignored: tuple[str, ...]
    """Keys of the file without effect, as in diffusers."""
    bytes: int
    """Size of the file."""
