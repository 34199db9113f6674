"""Banks of adapters among a slice's weights: what writes an adapter into their pages.

A page is written where it lies, by a program like any other: behind the steps that were launched
before it, which may still read what was there, and before those that come after. Nobody launches
anything meanwhile (`Launcher.write`), since the array that a bank was is gone from then on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from models.adapters.banks import page_arrays, page_axis
from models.adapters.files.adapter import Adapter
from models.interface.pipeline import Pipeline
from models.parallel.row_adapters import AdapterPages
from models.weights.loader import put
from workers.programs.device_weights import Weights, network_name


class AdapterBanks:
    """Banks of one pipeline. Takes them over: the pipeline keeps their shapes alone."""

    def __init__(self, pipeline: Pipeline, weights: Weights) -> None:
        self._pipeline: Any = pipeline
        self._weights = weights
        self._places: dict[str, int] = {}
        """Places of the banks' arrays among the weights, by network and path."""
        self._axes: dict[int, int] = {}
        """Axis of the pages, by place."""
        self._written: defaultdict[int, set[int]] = defaultdict(set)
        """Places whose page of a number is not zero."""
        leaves = jax.tree.leaves_with_path(pipeline.weights, is_leaf=_is_variable)
        for place, (path, leaf) in enumerate(leaves):
            if isinstance(leaf, AdapterPages):
                self._places[_name(path)] = place
                self._axes[place] = page_axis(leaf)
                leaf.set_value(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))

    def arrays(
        self, adapter: Adapter, pages: Sequence[int]
    ) -> Iterator[tuple[int, Sequence[int], np.ndarray]]:
        """Yield what has to be written for an adapter: place, pages, and what these hold.

        What neither it nor the pages' last owner changes is left out.
        """
        for network, changes in adapter.networks.items():
            module = nnx.merge(
                getattr(self._pipeline.graphs, network), getattr(self._pipeline.weights, network)
            )
            for path, array in page_arrays(module, changes, len(pages)).items():
                place = self._places[f"{network}.{path}"]
                if _has_numbers(array) or any(place in self._written[page] for page in pages):
                    yield place, pages, array
        yield from self._left_behind(adapter, pages)

    def _left_behind(
        self, adapter: Adapter, pages: Sequence[int]
    ) -> Iterator[tuple[int, Sequence[int], np.ndarray]]:
        """Yield zeros for networks that the pages' last owner changed and this one does not."""
        for name, place in self._places.items():
            stale = any(place in self._written[page] for page in pages)
            if stale and name.partition(".")[0] not in adapter.networks:
                bank, axis = self._weights.common[place], self._axes[place]
                shape = (*bank.shape[:axis], len(pages), *bank.shape[axis + 1 :])
                yield place, pages, np.zeros(shape, bank.dtype)

    def empty(self) -> Iterator[tuple[int, Sequence[int], np.ndarray]]:
        """Yield what writes zeros into the first page of each bank.

        So that the programs that write pages are compiled before an adapter comes.
        """
        for place, axis in self._axes.items():
            bank = self._weights.common[place]
            shape = (*bank.shape[:axis], 1, *bank.shape[axis + 1 :])
            yield place, (0,), np.zeros(shape, bank.dtype)

    def write(self, place: int, pages: Sequence[int], array: np.ndarray) -> None:
        """Write pages of one array of a bank. Nothing else may be launched.

        Args:
            array: as the bank's, with so many pages.
        """
        axis, sharding = self._axes[place], self._weights.common[place].sharding
        parts = [_page(array, number, axis) for number in range(len(pages))]
        arrived = [put(part, sharding) for part in parts]

        def change(bank: jax.Array) -> jax.Array:
            for page, own in zip(pages, arrived, strict=True):
                bank = _writer(axis, sharding)(bank, own, np.int32(page))
            return bank

        self._weights.replace(place, change)
        for page, part in zip(pages, parts, strict=True):
            self._note(page, place, part)

    def _note(self, page: int, place: int, part: np.ndarray) -> None:
        """Note whether a page of an array is zero now."""
        if _has_numbers(part):
            self._written[page].add(place)
        else:
            self._written[page].discard(place)


@lru_cache
def _writer(axis: int, sharding: Sharding) -> Any:
    """Return the program that writes one page of a bank, in place."""

    def write(bank: jax.Array, own: jax.Array, page: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(bank, own, page, axis)

    return jax.jit(write, out_shardings=sharding, donate_argnums=0)


def _page(array: np.ndarray, number: int, axis: int) -> np.ndarray:
    """Return a page of an array, which keeps its axis; not copied."""
    return array[(slice(None),) * axis + (slice(number, number + 1),)]


def _has_numbers(array: np.ndarray) -> bool:
    """Return whether any bit is set: NumPy asks bfloat16 number by number.

    A layer at a time: mostly the first has some.
    """
    return any(part.any() for part in array.view(f"u{array.itemsize}"))


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _name(path: Sequence[Any]) -> str:
    """Return a leaf's network and path, with dots."""
    return ".".join([network_name(path[0]), *(str(getattr(one, "key", one)) for one in path[1:])])
