"""Cache of encoded prompts, so that the images of a job, and jobs with equal prompts, share them.

Entries are in host memory: memory of the devices is planned without them, and copying a few
megabytes to a device takes much less time than a text encoder.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock

import jax
import numpy as np
from jax.sharding import Sharding

from models.interface.adapters import PAGES
from models.interface.pipeline import PreparedRow, PyTree
from workers import metrics
from workers.programs.compiler import signature
from workers.programs.prompt_part import Inputs


@dataclass(frozen=True)
class HostArray:
    """Copy in host memory of a device array, with its sharding."""

    array: np.ndarray
    sharding: Sharding
    """Sharding of the original on the devices."""


class PromptCache:
    """Encoded prompts of one model, with LRU eviction. Methods may run in any thread.

    Args:
        model: name of the model, for metrics.
        max_bytes: limit of all entries; 0 disables the cache.
    """

    def __init__(self, model: str, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._model = model
        self._entries: OrderedDict[Hashable, PyTree] = OrderedDict()
        """Trees of `HostArray`, the most recently used last."""
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Hashable) -> PyTree | None:
        """Return a prompt's encoding on the devices; None if it is not stored."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        result = "miss" if entry is None else "hit"
        metrics.prompt_encodings.labels(self._model, result).inc()
        return jax.tree.map(lambda leaf: jax.device_put(leaf.array, leaf.sharding), entry)

    def put(self, key: Hashable, encoding: PyTree) -> None:
        """Store a prompt's encoding, and evict the least recently used ones beyond the limit."""
        entry = jax.tree.map(lambda leaf: HostArray(np.asarray(leaf), leaf.sharding), encoding)
        size = _bytes(entry)
        if size > self.max_bytes:
            return
        with self._lock:
            self._bytes += size - _bytes(self._entries.pop(key, None))
            self._entries[key] = entry
            while self._bytes > self.max_bytes:
                _, evicted = self._entries.popitem(last=False)
                self._bytes -= _bytes(evicted)

    def clear(self) -> None:
        """Remove all encoded prompts."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0


class PromptLookup:
    """Lookup of one image's encoded prompts: a `Recall` of its encode program.

    Entries belong to one tenant, so that response times reveal nothing about other tenants'
    prompts.
    """

    def __init__(self, cache: PromptCache, tenant: str, prepared: PreparedRow) -> None:
        self.is_hit = False
        self._cache = cache
        self._tenant = tenant
        self._prepared = prepared

    def __call__(self, inputs: Inputs, compute: Callable[[], PyTree]) -> PyTree:
        """Return the stored encoding of a prompt's inputs, or compute and store it."""
        key = self._key(inputs)
        encoding = self._cache.get(key)
        self.is_hit = encoding is not None
        if encoding is None:
            encoding = compute()
            self._cache.put(key, encoding)
        return encoding

    def _key(self, inputs: Inputs) -> Hashable:
        """Return the cache key of a prompt, which covers all that its encoding depends on.

        A page of the banks may hold another adapter by now, so its digest is in the key.
        """
        digest = hashlib.sha256()
        for name in sorted(inputs):
            digest.update(inputs[name].tobytes())
        adapters = self._prepared.adapters if PAGES in inputs else ()
        scales = tuple((lora.digest, lora.scales) for lora in adapters)
        return self._tenant, signature(self._prepared.inputs), digest.hexdigest(), scales


def _bytes(entry: PyTree) -> int:
    return sum(leaf.array.nbytes for leaf in jax.tree.leaves(entry))
