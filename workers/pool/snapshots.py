"""Snapshots: how far the images of one job are, kept so that another pool can go on with it.

An image without a snapshot is no worse: what fails here is told to the log and tried again when
the budget allows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import Any

from service.jobs.model.job import NO_CLAIM, Output, Snapshot
from service.jobs.queue import Claim
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import snapshot_key
from service.tracing.log_context import note
from workers.engine.errors import EngineDied
from workers.engine.row import Row
from workers.engine.snapshot import Origin, RowSnapshot, UnfitSnapshot
from workers.pool import metrics
from workers.pool.snapshot_budget import Account
from workers.pool.snapshot_store import SnapshotStore
from workers.retry import until_reached

log = logging.getLogger(__name__)


class Snapshots:
    """Snapshots of one claim. To be used in the event loop."""

    def __init__(self, snapshot_store: SnapshotStore, claim: Claim) -> None:
        self._snapshot_store = snapshot_store
        self._claim = claim
        self._kept = {snapshot.index: snapshot for snapshot in claim.job.snapshots}
        """Snapshots as the queue knows them."""
        self._origins: dict[int, Origin] = {}
        self._accounts: dict[int, Account] = {}
        self._rows: dict[int, Row] = {}
        """Rows of the images that have done a step here."""
        self._sizes: dict[int, int | None] = {}
        """Bytes, of their states; None: they cannot be kept."""
        self._keeping: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._under_way: set[int] = set()
        """Images that are being kept, or about to be: where the event loop is late, many steps
        are told of before the first snapshot begins."""
        self._telling = asyncio.Lock()

    async def finished(self, number: int) -> Snapshot | None:
        """An image that an earlier claim has finished, if its files are there.

        Raises: StoreError.
        """
        snapshot = self._kept.get(number)
        if snapshot is None or not snapshot.outputs:
            return None
        keys = [output.key for output in snapshot.outputs]
        exists, until_stored = (
            self._snapshot_store.store.exists,
            self._snapshot_store.patience.until_stored,
        )
        found = await asyncio.gather(*(until_stored(exists, key) for key in keys))
        return snapshot if all(found) else None

    async def begin(
        self, number: int, fields: dict[str, Any], drafted: dict[str, Any] | None = None
    ) -> RowSnapshot | None:
        """Return an earlier claim's snapshot of this image; None: nothing that could be used.

        Args:
            fields: the image's resolved request, with the digests of its images.
            drafted: the request that its draft was drawn with, where that is another one.
        """
        self._origins[number] = self._snapshot_store.origin(fields)
        kept = await self._find(number, drafted)
        if kept is None:
            self._kept.pop(number, None)
        self._accounts[number] = self._snapshot_store.budget.account(
            kept.device_seconds if kept else 0
        )
        return kept

    async def _find(self, number: int, drafted: dict[str, Any] | None) -> RowSnapshot | None:
        snapshot = self._kept.get(number)
        if snapshot is None or snapshot.key is None:
            return None
        origin, is_draft = self._origins[number], snapshot.fence == NO_CLAIM
        if is_draft and drafted is not None:
            origin = self._snapshot_store.origin(drafted)
        try:
            kept = await self._snapshot_store.get(snapshot.key, origin)
            if is_draft:
                kept = replace(kept, device_seconds=0.0)  # its audition has paid for that
        except (StoreError, UnfitSnapshot) as error:
            log.warning("image %d of %s begins anew: %s", number, self._claim.job.id, error)
            return None
        metrics.resumed.labels(self._claim.job.model).inc()
        log.info("image %d of %s goes on after step %d", number, self._claim.job.id, kept.done)
        return kept

    def step(self, number: int, row: Row) -> None:
        """Take a snapshot of an image after a step if that pays."""
        if row.canceled:
            return
        if self._rows.get(number) is not row:
            self._meet(number, row)
        is_idle, size = (
            not (number in self._under_way or self._snapshot_store.rests),
            self._sizes[number],
        )
        if is_idle and size is not None and self._accounts[number].pays(row, size):
            self._under_way.add(number)
            self._snapshot_store.spawn(self._keep_beside(number, row))

    def _meet(self, number: int, row: Row) -> None:
        self._rows[number] = row
        self._sizes[number] = self._snapshot_store.engine.snapshot_bytes(row)
        if number in self._kept and row.image_done <= self._kept[number].step:
            del self._kept[number]  # it did not fit, and the engine began anew

    async def draft(self, number: int, row: Row, outputs: list[Output]) -> Snapshot:
        """Keep an audition's image as it is now, with its preview; without a state it begins anew.

        Raises: StoreError: it cannot be stored, which another pool may try.
        """
        async with self._keeping[number]:
            found = Snapshot(
                index=number,
                step=row.image_done,
                fence=self._claim.fence,
                device_seconds=row.checked.device_seconds,
                outputs=tuple(outputs),
            )
            if self._snapshot_store.engine.snapshot_bytes(row) is not None:
                kept = await self._snapshot_store.engine.take_snapshot(row)
                key = snapshot_key(self._claim.job.id, self._claim.fence, number, kept.done)
                store, origin = self._snapshot_store, self._origins[number]
                size = await store.patience.until_stored(store.put, key, kept, origin)
                found = found.model_copy(update={"key": key, "bytes": size})
            await self._tell(found)
        self._rows.pop(number, None)
        return found

    async def finish(self, snapshot: Snapshot) -> None:
        """An image is finished, and others of the job are not: it need not be made again."""
        await self._tell(snapshot)
        self._rows.pop(snapshot.index, None)

    @property
    def pay_aside(self) -> bool:
        """True if what is done pays for putting the job aside; not before an image began."""
        return bool(self._rows) and all(map(self._pays_aside, self._rows))

    def _pays_aside(self, number: int) -> bool:
        size = self._sizes[number]
        return size is not None and self._accounts[number].pays_aside(self._rows[number], size)

    @property
    def are_complete(self) -> bool:
        """Return whether all that is done is kept."""
        kept = {number: snapshot.step for number, snapshot in self._kept.items()}
        return all(kept.get(number, 0) >= row.image_done for number, row in self._rows.items())

    def go_on(self) -> None:
        """Undo `put_aside`."""
        for row in self._rows.values():
            self._snapshot_store.engine.go_on(row)

    async def put_aside(self, boundary_s: float) -> None:
        """No further step of any image, and what is done is kept.

        Args:
            boundary_s: for the step under way; what it does not give in that time is left out.
        """
        await asyncio.gather(*(self._put_aside(number, boundary_s) for number in self._rows))

    async def _put_aside(self, number: int, boundary_s: float) -> None:
        row = self._rows[number]
        if not row.is_done:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._snapshot_store.engine.hold(row), boundary_s)
        await self._keep(number, row)

    def _is_finished(self, number: int) -> bool:
        return number in self._kept and bool(self._kept[number].outputs)

    async def _keep_beside(self, number: int, row: Row) -> None:
        note(**self._claim.job.log_fields)
        try:
            await self._keep(number, row)
        finally:
            self._under_way.discard(number)

    async def _keep(self, number: int, row: Row) -> None:
        """Store an image's snapshot, one at a time."""
        if self._sizes[number] is None:
            return
        async with self._keeping[number]:
            try:
                await self._keep_now(number, row)
            except (StoreError, EngineDied) as error:
                self._snapshot_store.rest()
                metrics.snapshot_failures.labels(self._claim.job.model).inc()
                log.warning("image %d of %s is not kept: %s", number, self._claim.job.id, error)

    async def _keep_now(self, number: int, row: Row) -> None:
        """Raises: StoreError, EngineDied."""
        started = time.perf_counter()
        try:
            snapshot = await self._store(number, row)
        finally:
            self._spend(number, row, time.perf_counter() - started)
        if snapshot is not None and not await self._tell(snapshot):
            await self._snapshot_store.store.delete([str(snapshot.key)])

    def _spend(self, number: int, row: Row, seconds: float) -> None:
        self._accounts[number].spend(row, seconds)
        metrics.snapshot(self._claim.job.model, seconds)

    async def _store(self, number: int, row: Row) -> Snapshot | None:
        """Store a snapshot; None: nothing is new, and the file that there is may be in use."""
        kept = await self._snapshot_store.engine.take_snapshot(row)
        if number in self._kept and self._kept[number].step >= kept.done:
            return None
        claim = self._claim
        key = snapshot_key(claim.job.id, claim.fence, number, kept.done)
        await self._snapshot_store.put(key, kept, self._origins[number])
        return Snapshot(
            index=number,
            step=kept.done,
            fence=claim.fence,
            device_seconds=kept.device_seconds,
            key=key,
        )

    async def _tell(self, snapshot: Snapshot) -> bool:
        """Record a snapshot in the queue.

        False: the queue does not want it, since the claim is no longer ours or the image is
        finished. While Redis is away nothing else is kept.
        """
        async with self._telling:
            if snapshot.key is not None and self._is_finished(snapshot.index):
                return False
            kept = {**self._kept, snapshot.index: snapshot}
            tell = self._snapshot_store.queue.snapshot
            if not await until_reached(tell, self._claim, list(kept.values())):
                return False
            self._kept = kept
            return True
