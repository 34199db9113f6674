"""Weights: what programs are called with, and which of the swapped networks is on the device.

Leaves that are NumPy arrays lie on the host, because the device has no room for all of them: they
are brought for the steps that need them, one network in place of the other. A program does not
look at arguments that it does not use, so a network on the host costs it nothing.

All of them may leave the devices, for another model, and come back.
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
    """A pipeline's weights as a flat list: a network's tree is slow to walk at each call.

    Args:
        tree: networks by name, as a NamedTuple or a mapping.
        places: of all leaves in their order: where those of a network that is brought go.
        stacks: of all leaves, which ones are to be tuples of an array for each layer.
    """

    def __init__(
        self, model: str, tree: PyTree, places: Sequence[Sharding], stacks: Sequence[bool]
    ) -> None:
        leaves, self._tree = jax.tree.flatten_with_path(tree)
        self.common: list[Any] = [
            unstack(leaf) if stack else leaf
            for (_, leaf), stack in zip(leaves, stacks, strict=True)
        ]
        """Leaves for programs that need no swapped network: those lie on the host in here."""
        self.names = [jax.tree_util.keystr(path) for path, _ in leaves]
        """Names of all leaves, in their order."""
        self.resident: str | None = None
        """The swapped network that is on the device."""
        self._model = model
        self._shardings = places
        self._present = self.common
        self._lock = threading.Lock()
        """Held while leaves of banks change, and while an expert comes to the others."""
        self._copies = HostCopies()
        self.is_away = False
        """Return whether the weights have left the devices: nothing may be launched then."""
        self._places: dict[str, list[int]] = defaultdict(list)
        for place, (path, leaf) in enumerate(leaves):
            if isinstance(leaf, np.ndarray):
                self._places[network_name(path[0])].append(place)

    def is_swapped(self, network: str | None) -> bool:
        """Return whether that network has to be brought before it can be used."""
        return network in self._places

    def load_expert(self, network: str | None) -> list[Any]:
        """The weights with that network among them; None: with any.

        The one that leaves is freed first, so no step that uses it may be in flight.
        """
        if network is not None and network != self.resident and self.is_swapped(network):
            started = time.perf_counter()
            self._free()
            self._bring(network)
            metrics.swap(self._model, time.perf_counter() - started)
        return self._present

    def replace(self, place: int, change: Callable[[jax.Array], jax.Array]) -> None:
        """Put what `change` makes of a leaf in its place. From any thread.

        Where it takes the leaf over, no launch may be reading this list meanwhile.
        """
        with self._lock:
            new = change(self.common[place])
            self._copies.forget([place])
            self.common[place] = self._present[place] = new

    def leave(self) -> None:
        """Free the devices: weights go to host memory. No program may be running, or be launched.

        A second time nothing is copied but what has changed since.
        """
        if self.is_away:
            return
        self._free()
        with self._lock:
            self._copies.take(self._on_devices())
            self.is_away = True

    def come_back(self, keep_copies: bool = True) -> float:
        """Bring the weights to their devices again; return the seconds that it took.

        Args:
            keep_copies: in host memory, so that leaving is quick the next time.
        """
        started = time.perf_counter()
        if not self.is_away:
            return 0.0
        with self._lock:
            for place, leaf in self._copies.bring(self._on_devices()).items():
                self.common[place] = leaf
            self.is_away = False
            if not keep_copies:
                self._copies.forget(range(len(self.common)))
        return time.perf_counter() - started

    @property
    def device_bytes(self) -> int:
        """Bytes on the devices, over all of them together, when the weights are there."""
        arrays = jax.tree.leaves(list(self._on_devices().values()))
        return sum({id(array): array.nbytes for array in arrays}.values())

    def _on_devices(self) -> dict[int, Any]:
        return {place: leaf for place, leaf in enumerate(self.common) if is_on_device(leaf)}

    def unflatten(self, leaves: list[Any]) -> PyTree:
        """The pipeline's own tree of these leaves."""
        return jax.tree.unflatten(self._tree, leaves)

    def _free(self) -> None:
        """Delete the resident network's arrays, whoever may still hold a reference."""
        with self._lock:  # a bank that is replaced meanwhile would be taken for the network's
            leaving, self._present, self.resident = self._present, self.common, None
            for mine, other in zip(leaving, self.common, strict=True):
                if mine is not other:
                    mine.delete()

    def _bring(self, network: str) -> None:
        places = self._places[network]
        brought = [put(self.common[place], self._shardings[place]) for place in places]
        jax.block_until_ready(brought)
        with self._lock:
            present = list(self.common)
            for place, leaf in zip(places, brought, strict=True):
                present[place] = leaf
            self._present, self.resident = present, network


def network_name(key: Any) -> str:
    """Return the first part of a leaf's path: an attribute of a NamedTuple, or a mapping's key."""
    return str(key.name if isinstance(key, jax.tree_util.GetAttrKey) else key.key)
