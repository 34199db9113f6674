"""Snapshot storage: uploads states of rows to the object store while steps continue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from service.jobs.queue import Queue
from service.jobs.redis.tasks import cancel
from service.jobs.storage.object_store import STATE_TYPE, Store
from service.recipes.recipe import PRIVATE
from workers.engine.engine import Engine
from workers.engine.snapshot import Origin, RowSnapshot, from_bytes, to_bytes, with_optimizations
from workers.pool.snapshot_budget import Budget
from workers.retry import Patience

IGNORED_FIELDS = PRIVATE | {"output", "model"}
"""Request fields that change no step of an image; the model is identified by its fingerprint."""
PAUSE_S = 1.0
"""Seconds without snapshots after a failure, so that an unreachable store is not called at each
step."""


class SnapshotStore:
    """Resources shared by the snapshots of all jobs of a worker."""

    def __init__(
        self, engine: Engine, queue: Queue, store: Store, budget: Budget, patience: Patience
    ) -> None:
        self.engine = engine
        self.queue = queue
        self.store = store
        self.budget = budget
        self.patience = patience
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused_until = 0.0

    def pause(self) -> None:
        """Pause snapshots after one that could not be stored."""
        self._paused_until = time.monotonic() + PAUSE_S

    @property
    def is_paused(self) -> bool:
        """Return whether snapshots are paused after a failure."""
        return time.monotonic() < self._paused_until

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, even if its job is dropped."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel the storage tasks that are still running."""
        await cancel(*self._tasks)

    def origin(self, fields: dict[str, Any]) -> Origin:
        """Return the origin of a request's snapshots.

        Args:
            fields: one image's resolved request.
        """
        spec = self.engine.pipeline.spec
        image_fields = {name: value for name, value in fields.items() if name not in IGNORED_FIELDS}
        return Origin.of(
            spec.fingerprint, with_optimizations(spec, image_fields), self.engine.batching
        )

    async def put(self, key: str, snapshot: RowSnapshot, origin: Origin) -> int:
        """Store a snapshot, and return its size in bytes.

        Raises: StoreError.
        """
        data = await asyncio.to_thread(to_bytes, snapshot, origin)
        await self.store.put(key, data, STATE_TYPE)
        return len(data)

    async def get(self, key: str, origin: Origin) -> RowSnapshot:
        """Read a stored snapshot.

        Raises: StoreError, UnfitSnapshot.
        """
        data = await self.patience.until_stored(self.store.get, key)
        return await asyncio.to_thread(from_bytes, data, origin)
