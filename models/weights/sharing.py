"""Deduplication of device arrays among the networks of a process.

Checkpoints of one base model share text encoders, the VAE, and often untrained blocks. Each new
array is compared bit by bit, on its devices, with earlier arrays of the same path, shape and
sharding. A duplicate is freed. The result does not depend on the files' names or layout. Loading
temporarily needs the memory of one additional array.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool


class PlacedArrays:
    """Registry of the distinct arrays of all networks loaded with it."""

    def __init__(self) -> None:
        self._arrays: defaultdict[Hashable, list[jax.Array]] = defaultdict(list)
        self.shared_bytes = 0
        """Bytes of deduplicated arrays, over all devices."""

    def deduplicated(self, path: str, array: jax.Array) -> jax.Array:
        """Return a registered array with the same bits; otherwise register and return this one.

        Args:
            path: of the parameter in its network. Only arrays of equal paths are compared: others
                are equal only by chance, and comparing all would slow down loading.
            array: freed if another array is returned.
        """
        candidates = self._arrays[path, array.shape, array.dtype.name, array.sharding]
        for other in candidates:
            if other is array or (not other.is_deleted() and is_same(other, array)):
                self.shared_bytes += array.nbytes * (other is not array)
                if other is not array:
                    array.delete()
                return other
        candidates.append(array)
        return array


def is_same(array: jax.Array, other: jax.Array) -> bool:
    """Return whether two arrays of equal shape, dtype and sharding have the same bits.

    On a slice of several hosts, only this process's parts are compared.
    """
    return all(_is_same_part(*parts) for parts in _own_parts(array, other))


def _own_parts(array: jax.Array, other: jax.Array) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Yield each shard that this process holds of one array, with the other array's shard."""
    seen = set()
    for part, other_part in zip(array.addressable_shards, other.addressable_shards, strict=True):
        if str(part.index) not in seen:
            seen.add(str(part.index))
            yield part.data, other_part.data


def _is_same_part(first: jax.Array, second: jax.Array) -> bool:
    (device,) = first.devices()
    if first.sharding.memory_kind in (None, device.default_memory().kind):
        return bool(_same_bits(first, second))
    bytes_1, bytes_2 = (np.asarray(part).view(np.uint8) for part in (first, second))
    return np.array_equal(bytes_1, bytes_2)


@jax.jit
def _same_bits(first: Array, second: Array) -> Bool[Array, ""]:
    """Compare arrays as integers, which distinguishes signed zeros and equates NaN with itself."""
    kind = jnp.dtype(f"uint{8 * first.dtype.itemsize}")
    bits_1, bits_2 = (jax.lax.bitcast_convert_type(array, kind) for array in (first, second))
    return (bits_1 == bits_2).all()
