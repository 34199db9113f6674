"""Copies of weights in host memory, from which they come back to the devices at the bus's rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from models.weights.loader import HOST_MEMORY

Host = np.ndarray | jax.Array
"""Copy of one array: a NumPy array, or an array in the devices' pinned host memory."""


class HostCopies:
    """Copies of a pipeline's arrays, by their places among its weights.

    Several places may have one array: it is copied once, and is one again when it comes back.
    """

    def __init__(self) -> None:
        self._copies: dict[int, list[Host]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        each = {id(one): one.nbytes for found in self._copies.values() for one in found}
        return sum(each.values())

    def forget(self, places: Iterable[int]) -> None:
        """Drop copies of what has changed on the devices, or is not to stay."""
        for place in list(places):
            self._copies.pop(place, None)

    def take(self, leaves: Mapping[int, Any]) -> None:
        """Copy leaves that have no copy yet, and free all of them on the devices.

        Args:
            leaves: by place; an array, or a tuple of an array for each layer.
        """
        made: dict[int, Host] = {}
        for place in leaves.keys() - self._copies.keys():
            arrays = _arrays(leaves[place])
            for array in arrays:
                if id(array) not in made:
                    made[id(array)] = copied(array)
            self._copies[place] = [made[id(array)] for array in arrays]
        for leaf in leaves.values():
            for array in _arrays(leaf):
                array.delete()  # not left to whoever else may still hold a reference

    def bring(self, leaves: Mapping[int, Any]) -> dict[int, Any]:
        """Return leaves on their devices again, by place. All are on their way at once.

        Args:
            leaves: that `take` has freed.
        """
        brought: dict[int, jax.Array] = {}
        found: dict[int, Any] = {}
        for place, leaf in leaves.items():
            for copy, array in zip(self._copies[place], _arrays(leaf), strict=True):
                if id(copy) not in brought:
                    brought[id(copy)] = jax.device_put(copy, array.sharding)
            back = [brought[id(copy)] for copy in self._copies[place]]
            found[place] = tuple(back) if isinstance(leaf, tuple) else back[0]
        jax.block_until_ready(list(brought.values()))
        return found


def _arrays(leaf: Any) -> Sequence[jax.Array]:
    """Return the arrays of a leaf."""
    return leaf if isinstance(leaf, tuple) else (leaf,)


def copied(array: jax.Array) -> Host:
    """Return a copy in host memory: pinned where the devices have that, so that a bus reads it."""
    if is_pinnable(array):
        pinned = array.sharding.with_memory_kind(HOST_MEMORY)
        return jax.block_until_ready(jax.device_put(array, pinned))
    return np.array(array)


def is_pinnable(array: jax.Array) -> bool:
    """Return whether its devices lie behind a bus, and read pinned host memory."""
    (first, *_) = array.devices()
    kinds = {memory.kind for memory in first.addressable_memories()}
    return first.platform != "cpu" and HOST_MEMORY in kinds


def is_on_device(leaf: Any) -> bool:
    """Return whether a leaf takes memory of the devices."""
    one = leaf[0] if isinstance(leaf, tuple) else leaf
    return isinstance(one, jax.Array) and one.sharding.memory_kind != HOST_MEMORY
