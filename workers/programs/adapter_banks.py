"""LoRA banks among a slice's weights, and the program that writes adapters into their pages.

The program updates a page in place. It runs in order: after steps launched earlier, which may still
read the old page, and before later ones. Nothing may be launched during a write (`Launcher.write`),
because the bank's array is donated.
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
    """LoRA banks of one pipeline. Takes ownership: the pipeline retains only abstract arrays."""

    def __init__(self, pipeline: Pipeline, weights: Weights) -> None:
        self._pipeline: Any = pipeline
        self._weights = weights
        self._indices: dict[str, int] = {}
        """Index of each bank array among the weights, by network and path."""
        self._axes: dict[int, int] = {}
        """Page axis of each bank array, by index."""
        self._written: defaultdict[int, set[int]] = defaultdict(set)
        """Indices of the bank arrays with nonzero content, by page."""
        leaves = jax.tree.leaves_with_path(pipeline.weights, is_leaf=_is_variable)
        for index, (path, leaf) in enumerate(leaves):
            if isinstance(leaf, AdapterPages):
                self._indices[_name(path)] = index
                self._axes[index] = page_axis(leaf)
                leaf.set_value(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))

    def arrays(
        self, adapter: Adapter, pages: Sequence[int]
    ) -> Iterator[tuple[int, Sequence[int], np.ndarray]]:
        """Yield the writes that load an adapter: array index, pages, and their content.

        Arrays are omitted if neither this adapter nor the pages' previous adapter changes them.
        """
        for network, changes in adapter.networks.items():
            module = nnx.merge(
                getattr(self._pipeline.graphs, network), getattr(self._pipeline.weights, network)
            )
            contents = page_arrays(module, changes, len(pages), adapter.has_magnitudes)
            for path, array in contents.items():
                index = self._indices[f"{network}.{path}"]
                if _has_numbers(array) or any(index in self._written[page] for page in pages):
                    yield index, pages, array
        yield from self._left_behind(adapter, pages)

    def _left_behind(
        self, adapter: Adapter, pages: Sequence[int]
    ) -> Iterator[tuple[int, Sequence[int], np.ndarray]]:
        """Yield zeros for networks that only the pages' previous adapter changed."""
        for name, index in self._indices.items():
            stale = any(index in self._written[page] for page in pages)
            if stale and name.partition(".")[0] not in adapter.networks:
                bank, axis = self._weights.common[index], self._axes[index]
                shape = (*bank.shape[:axis], len(pages), *bank.shape[axis + 1 :])
                yield index, pages, np.zeros(shape, bank.dtype)

    def empty(self) -> Iterator[tuple[int, Sequence[int], np.ndarray]]:
        """Yield writes of zeros into the first page of each bank.

        They compile the write programs before the first adapter is loaded.
        """
        for index, axis in self._axes.items():
            bank = self._weights.common[index]
            shape = (*bank.shape[:axis], 1, *bank.shape[axis + 1 :])
            yield index, (0,), np.zeros(shape, bank.dtype)

    def write(self, index: int, pages: Sequence[int], array: np.ndarray) -> None:
        """Write pages of one bank array. Nothing else may be launched meanwhile.

        Args:
            array: content of the pages, shaped like the bank except for the number of pages.
        """
        axis, sharding = self._axes[index], self._weights.common[index].sharding
        parts = [_page(array, number, axis) for number in range(len(pages))]
        arrived = [put(part, sharding) for part in parts]

        def change(bank: jax.Array) -> jax.Array:
            for page, content in zip(pages, arrived, strict=True):
                bank = _writer(axis, sharding)(bank, content, np.int32(page))
            return bank

        self._weights.replace(index, change)
        for page, part in zip(pages, parts, strict=True):
            self._record_content(page, index, part)

    def _record_content(self, page: int, index: int, part: np.ndarray) -> None:
        """Record whether a page of a bank array is zero now."""
        if _has_numbers(part):
            self._written[page].add(index)
        else:
            self._written[page].discard(index)


@lru_cache
def _writer(axis: int, sharding: Sharding) -> Any:
    """Return the jitted program that writes one page of a bank in place."""

    def write(bank: jax.Array, content: jax.Array, page: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(bank, content, page, axis)

    return jax.jit(write, out_shardings=sharding, donate_argnums=0)


def _page(array: np.ndarray, number: int, axis: int) -> np.ndarray:
    """Return a page of a bank array as a view that keeps the page axis."""
    return array[(slice(None),) * axis + (slice(number, number + 1),)]


def _has_numbers(array: np.ndarray) -> bool:
    """Return whether any bit of an array is set; integer views avoid a slow test of bfloat16.

    Tests one layer at a time, since usually the first is nonzero.
    """
    return any(part.any() for part in array.view(f"u{array.itemsize}"))


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _name(path: Sequence[Any]) -> str:
    """Return the name of a bank array: network and path, joined by dots."""
    return ".".join([network_name(path[0]), *(str(getattr(key, "key", key)) for key in path[1:])])
