"""Arrays that lie on the devices once, whichever of a process's networks have them.

Checkpoints of one base have the same text encoders and VAE, and often blocks that nobody has
trained further. Of a later network each array is held, as soon as it is placed, against the one of
the same name, shape and place of each network before it, bit by bit on its devices; an equal one is
freed again. So it does not matter how the files name or split what they store, and loading takes
the memory of one array more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool


class PlacedArrays:
    """Arrays of all networks that were loaded with it, each of different bits."""

    def __init__(self) -> None:
        self._arrays: defaultdict[Hashable, list[jax.Array]] = defaultdict(list)
        self.shared_bytes = 0
        """Bytes of arrays, over all devices together, that lay there already."""

    def once(self, path: str, array: jax.Array) -> jax.Array:
        """Return the array that lies there already with these bits, or this one, if none does.

        Args:
            path: of the parameter in its network. Another one's bits are equal by chance alone,
                and to compare each with all would cost every load for it.
            array: freed where another one is returned.
        """
        there = self._arrays[path, array.shape, array.dtype.name, array.sharding]
        for other in there:
            if other is array or (not other.is_deleted() and is_same(other, array)):
                self.shared_bytes += array.nbytes * (other is not array)
                if other is not array:
                    array.delete()
                return other
        there.append(array)
        return array


def is_same(one: jax.Array, other: jax.Array) -> bool:
    """Return whether two arrays of one shape, dtype and sharding have the same bits.

    On a slice of several hosts: the parts of this process, which it alone decides about.
    """
    return all(_is_same_part(*parts) for parts in _own_parts(one, other))


def _own_parts(one: jax.Array, other: jax.Array) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Yield each different part of this process."""
    seen = set()
    for mine, theirs in zip(one.addressable_shards, other.addressable_shards, strict=True):
        if str(mine.index) not in seen:
            seen.add(str(mine.index))
            yield mine.data, theirs.data


def _is_same_part(one: jax.Array, other: jax.Array) -> bool:
    (device,) = one.devices()
    if one.sharding.memory_kind in (None, device.default_memory().kind):
        return bool(_same_bits(one, other))
    mine, theirs = (np.asarray(array).view(np.uint8) for array in (one, other))
    return np.array_equal(mine, theirs)


@jax.jit
def _same_bits(one: Array, other: Array) -> Bool[Array, ""]:
    """Compare as whole numbers: zeros have signs, and NaN is itself."""
    kind = jnp.dtype(f"uint{8 * one.dtype.itemsize}")
    mine, theirs = (jax.lax.bitcast_convert_type(array, kind) for array in (one, other))
    return (mine == theirs).all()
