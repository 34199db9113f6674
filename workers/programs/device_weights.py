"""Device weights: the arguments of programs, including the swapped network currently loaded.

Leaves that are NumPy arrays stay in host memory, because the device cannot hold all networks. They
are loaded for the steps that need them, one network replacing another. Programs ignore arguments
that they do not use, so a network on the host costs nothing.

All weights can be moved off the devices, to make way for another model, and loaded again.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from models.interface.pipeline import PyTree
from models.weights.loader import put
from workers import metrics
from workers.programs.host_copies import HostCopies, is_on_device
from workers.programs.unstack import unstack


class Weights:
    """A pipeline's weights as a flat list, since traversing a network's tree at each call is slow.

    Args:
        tree: networks by name, as a NamedTuple or a mapping.
        shardings: shardings of all leaves in order, used when a swapped network is loaded.
        stacks: for each leaf, whether to split it into a tuple with one array per layer.
    """

    def __init__(
        self, model: str, tree: PyTree, shardings: Sequence[Sharding], stacks: Sequence[bool]
    ) -> None:
        leaves, self._tree = jax.tree.flatten_with_path(tree)
        self.common: list[Any] = [
            unstack(leaf) if stack else leaf
            for (_, leaf), stack in zip(leaves, stacks, strict=True)
        ]
        """Leaves for programs that need no swapped network; swapped networks' leaves are on the
        host."""
        self.names = [jax.tree_util.keystr(path) for path, _ in leaves]
        """Names of all weights, in order."""
        self.resident: str | None = None
        """Name of the swapped network that is on the device."""
        self._model = model
        self._shardings = shardings
        self._present = self.common
        self._lock = threading.Lock()
        """Lock for replacing leaves of banks and for swapping networks."""
        self._copies = HostCopies()
        self.is_offloaded = False
        """Whether the weights are off the devices; nothing may be launched then."""
        self._indices_of: dict[str, list[int]] = defaultdict(list)
        for index, (path, leaf) in enumerate(leaves):
            if isinstance(leaf, np.ndarray):
                self._indices_of[network_name(path[0])].append(index)

    def is_swapped(self, network: str | None) -> bool:
        """Return whether that network must be loaded before use."""
        return network in self._indices_of

    def load_expert(self, network: str | None) -> list[Any]:
        """Return the weights with that network loaded; None: with any network.

        The resident network is freed first, so no step that uses it may be in flight.
        """
        if network is not None and network != self.resident and self.is_swapped(network):
            started = time.perf_counter()
            self._free()
            self._load(network)
            metrics.swap(self._model, time.perf_counter() - started)
        return self._present

    def replace(self, index: int, change: Callable[[jax.Array], jax.Array]) -> None:
        """Replace a leaf with the result of `change`. Callable from any thread.

        If `change` donates the leaf, no launch may read this list meanwhile.
        """
        with self._lock:
            new = change(self.common[index])
            self._copies.forget([index])
            self.common[index] = self._present[index] = new

    def offload(self) -> None:
        """Copy the weights to host memory, and free them on the devices.

        Leaves with a host copy from an earlier call are not copied again unless changed.
        """
        if self.is_offloaded:
            return
        self._free()
        with self._lock:
            self._copies.take(self._on_devices())
            self.is_offloaded = True

    def reload(self, keep_copies: bool = True) -> float:
        """Load the weights onto their devices again; return the elapsed seconds.

        Args:
            keep_copies: retain host copies, so that the next `offload` is fast.
        """
        started = time.perf_counter()
        if not self.is_offloaded:
            return 0.0
        with self._lock:
            for index, leaf in self._copies.reload(self._on_devices()).items():
                self.common[index] = leaf
            self.is_offloaded = False
            if not keep_copies:
                self._copies.forget(range(len(self.common)))
        return time.perf_counter() - started

    @property
    def device_bytes(self) -> int:
        """Total bytes of the weights on all devices, when they are loaded."""
        arrays = jax.tree.leaves(list(self._on_devices().values()))
        return sum({id(array): array.nbytes for array in arrays}.values())

    def _on_devices(self) -> dict[int, Any]:
        return {index: leaf for index, leaf in enumerate(self.common) if is_on_device(leaf)}

    def unflatten(self, leaves: list[Any]) -> PyTree:
        """Rebuild the pipeline's weight tree from a flat list of leaves."""
        return jax.tree.unflatten(self._tree, leaves)

    def _free(self) -> None:
        """Delete the resident network's arrays, even if they are still referenced elsewhere."""
        with self._lock:  # a bank replaced concurrently would be mistaken for the network's
            leaving, self._present, self.resident = self._present, self.common, None
            for current, common in zip(leaving, self.common, strict=True):
                if current is not common:
                    current.delete()

    def _load(self, network: str) -> None:
        indices = self._indices_of[network]
        brought = [put(self.common[index], self._shardings[index]) for index in indices]
        jax.block_until_ready(brought)
        with self._lock:
            present = list(self.common)
            for index, leaf in zip(indices, brought, strict=True):
                present[index] = leaf
            self._present, self.resident = present, network


def network_name(key: Any) -> str:
    """Return the first part of a leaf's path: a NamedTuple's attribute or a mapping's key."""
    return str(key.name if isinstance(key, jax.tree_util.GetAttrKey) else key.key)
