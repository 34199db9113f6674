"""Host-memory copies of weights, from which they are reloaded at the bus's bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from models.weights.loader import HOST_MEMORY

Host = np.ndarray | jax.Array
"""Copy of one array: a NumPy array, or an array in the devices' pinned host memory."""


class HostCopies:
    """Host copies of a pipeline's arrays, by index among its weights.

    An array used at several indices is copied once, and shared again after reloading.
    """

    def __init__(self) -> None:
        self._copies: dict[int, list[Host]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of host memory used by all host copies."""
        each = {id(copy): copy.nbytes for copies in self._copies.values() for copy in copies}
        return sum(each.values())

    def forget(self, indices: Iterable[int]) -> None:
        """Drop host copies that are outdated or no longer needed."""
        for index in list(indices):
            self._copies.pop(index, None)

    def take(self, leaves: Mapping[int, Any]) -> None:
        """Copy leaves that have no copy yet, then free all of them on the devices.

        Args:
            leaves: by index; an array, or a tuple with one array per layer.
        """
        copies: dict[int, Host] = {}
        for index in leaves.keys() - self._copies.keys():
            arrays = _arrays(leaves[index])
            for array in arrays:
                if id(array) not in copies:
                    copies[id(array)] = copied(array)
            self._copies[index] = [copies[id(array)] for array in arrays]
        for leaf in leaves.values():
            for array in _arrays(leaf):
                array.delete()  # freed even if still referenced elsewhere

    def reload(self, leaves: Mapping[int, Any]) -> dict[int, Any]:
        """Reload leaves onto their devices with concurrent transfers; return them by index.

        Args:
            leaves: leaves that `take` has freed.
        """
        brought: dict[int, jax.Array] = {}
        reloaded: dict[int, Any] = {}
        for index, leaf in leaves.items():
            for copy, array in zip(self._copies[index], _arrays(leaf), strict=True):
                if id(copy) not in brought:
                    brought[id(copy)] = jax.device_put(copy, array.sharding)
            back = [brought[id(copy)] for copy in self._copies[index]]
            reloaded[index] = tuple(back) if isinstance(leaf, tuple) else back[0]
        jax.block_until_ready(list(brought.values()))
        return reloaded


def _arrays(leaf: Any) -> Sequence[jax.Array]:
    """Return a weight's arrays as a sequence, one per layer if the weight was split."""
    return leaf if isinstance(leaf, tuple) else (leaf,)


def copied(array: jax.Array) -> Host:
    """Copy an array to host memory, pinned if the devices support it."""
    if is_pinnable(array):
        pinned = array.sharding.with_memory_kind(HOST_MEMORY)
        copy: jax.Array = jax.block_until_ready(jax.device_put(array, pinned))
        return copy
    return np.array(array)


def is_pinnable(array: jax.Array) -> bool:
    """Return whether an array's devices are attached to a bus and read pinned host memory."""
    (first, *_) = array.devices()
    kinds = {memory.kind for memory in first.addressable_memories()}
    return first.platform != "cpu" and HOST_MEMORY in kinds


def is_on_device(leaf: Any) -> bool:
    """Return whether a weight occupies device memory."""
    array = leaf[0] if isinstance(leaf, tuple) else leaf
    return isinstance(array, jax.Array) and array.sharding.memory_kind != HOST_MEMORY
