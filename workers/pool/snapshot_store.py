"""Snapshot store: brings the states of rows into the store, beside the steps."""

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
from workers.engine.snapshot import Origin, RowSnapshot, from_bytes, to_bytes, with_levers
from workers.pool.snapshot_budget import Budget
from workers.retry import Patience

NOT_OF_THE_IMAGE = PRIVATE | {"output", "model"}
"""Fields of a request that change no step of an image: the model is told by its fingerprint."""
REST_S = 1.0
"""Pause after a snapshot that failed: a store that is away costs little, and would be asked at each
step."""


class SnapshotStore:
    """Resources that the snapshots of all jobs of a pool share."""

    def __init__(
        self, engine: Engine, queue: Queue, store: Store, budget: Budget, patience: Patience
    ) -> None:
        self.engine = engine
        self.queue = queue
        self.store = store
        self.budget = budget
        self.patience = patience
        self._tasks: set[asyncio.Task[None]] = set()
        self._rests_until = 0.0

    def rest(self) -> None:
        """Pause snapshots after one that could not be stored."""
        self._rests_until = time.monotonic() + REST_S

    @property
    def rests(self) -> bool:
        """Return whether the store is left alone for a while, after failures."""
        return time.monotonic() < self._rests_until

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work to its end, even where its job is given up: it cleans up after itself."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel whatever is under way."""
        await cancel(*self._tasks)

    def origin(self, fields: dict[str, Any]) -> Origin:
        """Return the origin of a request's snapshots.

        Args:
            fields: one image's resolved request.
        """
        spec = self.engine.pipeline.spec
        own = {name: value for name, value in fields.items() if name not in NOT_OF_THE_IMAGE}
        return Origin.of(spec.fingerprint, with_levers(spec, own), self.engine.batching)

    async def put(self, key: str, snapshot: RowSnapshot, origin: Origin) -> int:
        """Store a snapshot, and return its size in bytes.

        Raises: StoreError.
        """
        data = await asyncio.to_thread(to_bytes, snapshot, origin)
        await self.store.put(key, data, STATE_TYPE)
        return len(data)

    async def get(self, key: str, origin: Origin) -> RowSnapshot:
        """Return a stored snapshot.

        Raises: StoreError, UnfitSnapshot.
        """
        data = await self.patience.until_stored(self.store.get, key)
        return await asyncio.to_thread(from_bytes, data, origin)
