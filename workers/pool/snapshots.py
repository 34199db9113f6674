"""Snapshots of one job's unfinished images, from which another worker can resume it.

A failure is only logged, and retried when the budget allows: an image without a snapshot remains
valid.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from service.jobs.model.job import NO_CLAIM, Output, Snapshot
from service.jobs.queue import Claim, Queue
from service.jobs.redis.tasks import cancel
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import STATE_TYPE, Store, snapshot_key
from service.recipes.recipe import PRIVATE
from service.tracing.log_context import note
from workers.engine.engine import Engine
from workers.engine.errors import EngineFailed
from workers.engine.row import ImageRow, Row
from workers.engine.snapshot import (
    Origin,
    RowSnapshot,
    UnfitSnapshot,
    from_bytes,
    to_bytes,
    with_optimizations,
)
from workers.pool import metrics
from workers.pool.snapshot_budget import Account, Budget
from workers.retry import Patience, until_reached

IGNORED_FIELDS = PRIVATE | {"output", "model"}
"""Request fields that change no step of an image; the model is identified by its fingerprint."""
PAUSE_S = 1.0
"""Seconds without snapshots after a failure, so that an unreachable store is not called at each
step."""

log = logging.getLogger(__name__)


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
        """Run a storage coroutine to its end, even if its job is dropped."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel the snapshots' storage tasks that are still running."""
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
        """Read and verify a stored snapshot.

        Raises: StoreError, UnfitSnapshot.
        """
        data = await self.patience.until_stored(self.store.get, key)
        return await asyncio.to_thread(from_bytes, data, origin)


class Snapshots:
    """Snapshots of one claimed job's images. Use it in the event loop."""

    def __init__(self, snapshot_store: SnapshotStore, claim: Claim) -> None:
        self._snapshot_store = snapshot_store
        self._claim = claim
        self._recorded = {snapshot.index: snapshot for snapshot in claim.job.snapshots}
        """Snapshots of this job that the queue has recorded, by image."""
        self._origins: dict[int, Origin] = {}
        self._accounts: dict[int, Account] = {}
        self._rows: dict[int, Row] = {}
        """Rows of the images that have done a step in this claim."""
        self._sizes: dict[int, int | None] = {}
        """Bytes of each row's state; None: it cannot be copied."""
        self._store_locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._in_progress: set[int] = set()
        """Images with a snapshot in progress or about to start. If the event loop lags, many steps
        are reported before the first snapshot starts."""
        self._record_lock = asyncio.Lock()

    async def finished(self, number: int) -> Snapshot | None:
        """Return an image finished by an earlier claim, if its files exist.

        Raises: StoreError.
        """
        snapshot = self._recorded.get(number)
        if snapshot is None or not snapshot.outputs:
            return None
        keys = [output.key for output in snapshot.outputs]
        exists, until_stored = (
            self._snapshot_store.store.exists,
            self._snapshot_store.patience.until_stored,
        )
        present = await asyncio.gather(*(until_stored(exists, key) for key in keys))
        return snapshot if all(present) else None

    async def begin(
        self,
        number: int,
        fields: dict[str, Any],
        drafted: dict[str, Any] | None = None,
        position: int | None = None,
    ) -> RowSnapshot | None:
        """Load an earlier claim's snapshot of this image; None: no usable snapshot.

        Args:
            fields: the image's resolved request, with the digests of its input images.
            drafted: the request of its draft, if different.
            position: the step at which the image continues its draft, if the schedule is another.
        """
        self._origins[number] = self._snapshot_store.origin(fields)
        restored = await self._find(number, drafted, position)
        if restored is None:
            self._recorded.pop(number, None)
        self._accounts[number] = self._snapshot_store.budget.account(
            restored.device_seconds if restored else 0
        )
        return restored

    async def _find(
        self, number: int, drafted: dict[str, Any] | None, position: int | None
    ) -> RowSnapshot | None:
        snapshot = self._recorded.get(number)
        if snapshot is None or snapshot.key is None:
            return None
        origin, is_draft = self._origins[number], snapshot.fence == NO_CLAIM
        if is_draft and drafted is not None:
            origin = self._snapshot_store.origin(drafted)
        try:
            restored = await self._snapshot_store.get(snapshot.key, origin)
            if is_draft:
                restored = replace(restored, device_seconds=0.0)  # already charged to the audition
                restored = restored.at_step(position)
        except (StoreError, UnfitSnapshot) as error:
            log.warning("image %d of %s starts over: %s", number, self._claim.job.id, error)
            return None
        metrics.resumed.labels(self._claim.job.model).inc()
        log.info("image %d of %s resumes after step %d", number, self._claim.job.id, restored.done)
        return restored

    def step(self, number: int, row: ImageRow) -> None:
        """Take a snapshot of an image after a step, if its backend can and the budget allows."""
        if row.canceled or not isinstance(row, Row):
            return
        if self._rows.get(number) is not row:
            self._begin_row(number, row)
        is_idle, size = (
            not (number in self._in_progress or self._snapshot_store.is_paused),
            self._sizes[number],
        )
        if is_idle and size is not None and self._accounts[number].pays(row, size):
            self._in_progress.add(number)
            self._snapshot_store.spawn(self._store_in_background(number, row))

    def _begin_row(self, number: int, row: Row) -> None:
        self._rows[number] = row
        self._sizes[number] = self._snapshot_store.engine.snapshots.bytes(row)
        if number in self._recorded and row.image_done <= self._recorded[number].step:
            del self._recorded[number]  # it did not fit, and the engine started over

    async def draft(self, number: int, row: Row, outputs: list[Output]) -> Snapshot:
        """Store the state of an audition's image with its preview; without a state it starts over.

        Raises: StoreError: it cannot be stored; another worker may retry.
        """
        async with self._store_locks[number]:
            snapshot = Snapshot(
                index=number,
                step=row.image_done,
                fence=self._claim.fence,
                device_seconds=row.progress.device_seconds,
                outputs=tuple(outputs),
            )
            if self._snapshot_store.engine.snapshots.bytes(row) is not None:
                row_snapshot = await self._taken(row)
                key = snapshot_key(self._claim.job.id, self._claim.fence, number, row_snapshot.done)
                store, origin = self._snapshot_store, self._origins[number]
                size = await store.patience.until_stored(store.put, key, row_snapshot, origin)
                snapshot = snapshot.model_copy(update={"key": key, "bytes": size})
            await self._record(snapshot)
        self._rows.pop(number, None)
        return snapshot

    async def finish(self, snapshot: Snapshot) -> None:
        """Record a finished image while others of the job run, so that it need not be redone."""
        await self._record(snapshot)
        self._rows.pop(snapshot.index, None)

    @property
    def pay_suspension(self) -> bool:
        """True if the finished steps pay for suspending the job; False before any image began."""
        return bool(self._rows) and all(map(self._pays_suspension, self._rows))

    def _pays_suspension(self, number: int) -> bool:
        size = self._sizes[number]
        return size is not None and self._accounts[number].pays_suspension(self._rows[number], size)

    @property
    def are_complete(self) -> bool:
        """Return whether the finished steps of every image are stored."""
        stored_steps = {number: snapshot.step for number, snapshot in self._recorded.items()}
        return all(
            stored_steps.get(number, 0) >= row.image_done for number, row in self._rows.items()
        )

    def resume(self) -> None:
        """Resume the job's rows paused by `suspend`."""
        for row in self._rows.values():
            self._snapshot_store.engine.step_loop.resume(row)

    async def suspend(self, boundary_s: float) -> None:
        """Pause all images of the job, and store their state.

        Args:
            boundary_s: timeout for the step in flight; if it expires, that step is not included.
        """
        await asyncio.gather(*(self._suspend(number, boundary_s) for number in self._rows))

    async def _suspend(self, number: int, boundary_s: float) -> None:
        row = self._rows[number]
        if not row.is_done:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._snapshot_store.engine.pause(row), boundary_s)
        await self._store_or_log(number, row)

    def _is_finished(self, number: int) -> bool:
        return number in self._recorded and bool(self._recorded[number].outputs)

    async def _store_in_background(self, number: int, row: Row) -> None:
        note(**self._claim.job.log_fields)
        try:
            await self._store_or_log(number, row)
        finally:
            self._in_progress.discard(number)

    async def _store_or_log(self, number: int, row: Row) -> None:
        """Store an image's snapshot, one at a time."""
        if self._sizes[number] is None:
            return
        async with self._store_locks[number]:
            try:
                await self._store_and_record(number, row)
            except (StoreError, EngineFailed) as error:
                self._snapshot_store.pause()
                metrics.snapshot_failures.labels(self._claim.job.model).inc()
                log.warning(
                    "the snapshot of image %d of %s failed: %s", number, self._claim.job.id, error
                )

    async def _store_and_record(self, number: int, row: Row) -> None:
        """Store and record an image's snapshot. Raises: StoreError, EngineFailed."""
        started = time.perf_counter()
        try:
            snapshot = await self._store(number, row)
        finally:
            self._spend(number, row, time.perf_counter() - started)
        if snapshot is not None and not await self._record(snapshot):
            await self._snapshot_store.store.delete([str(snapshot.key)])

    def _spend(self, number: int, row: Row, seconds: float) -> None:
        self._accounts[number].spend(row, seconds)
        metrics.snapshot(self._claim.job.model, seconds)

    async def _taken(self, row: Row) -> RowSnapshot:
        """Copy a row's state in the tenant's turn. Raises: EngineFailed."""
        return await self._snapshot_store.engine.take_snapshot(row, self._claim.job.tenant)

    async def _store(self, number: int, row: Row) -> Snapshot | None:
        """Store a row's snapshot; None: no new step, and the existing file may be in use."""
        row_snapshot = await self._taken(row)
        if number in self._recorded and self._recorded[number].step >= row_snapshot.done:
            return None
        claim = self._claim
        key = snapshot_key(claim.job.id, claim.fence, number, row_snapshot.done)
        await self._snapshot_store.put(key, row_snapshot, self._origins[number])
        return Snapshot(
            index=number,
            step=row_snapshot.done,
            fence=claim.fence,
            device_seconds=row_snapshot.device_seconds,
            key=key,
        )

    async def _record(self, snapshot: Snapshot) -> bool:
        """Record a snapshot in the queue.

        Returns False if the queue rejects it: the claim is no longer valid, or the image is
        finished. While Redis is unreachable, no other snapshot is recorded.
        """
        async with self._record_lock:
            if snapshot.key is not None and self._is_finished(snapshot.index):
                return False
            snapshots = {**self._recorded, snapshot.index: snapshot}
            record = self._snapshot_store.queue.snapshot
            if not await until_reached(record, self._claim, list(snapshots.values())):
                return False
            self._recorded = snapshots
            return True
