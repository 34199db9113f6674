"""Page table of a LoRA bank: which adapters occupy which pages, their users, and eviction.

An image holds its adapters from encoding to its last step. It does not wait if all are loaded.
Otherwise it takes free pages, or those of the least recently used adapters. If all pages are in
use, it marks adapters for eviction. No other image may start to use these, so the wait is finite.
An adapter's pages need not be contiguous.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from models.spec.lora import RequestedLora

Load = Callable[[RequestedLora, Sequence[int]], Awaitable[None]]
"""Loader of an adapter into the given pages."""


@dataclass(eq=False)
class ResidentAdapter:
    """Adapter that occupies pages of the bank, loaded or still loading."""

    digest: str
    pages: tuple[int, ...]
    loading: asyncio.Future[None]
    """Future that completes when the adapter is loaded."""
    users: int = 0
    is_evicting: bool = False
    """Whether the adapter is evicted when its last user releases it, because an image waits for its
    pages."""


@dataclass(eq=False)
class AdapterSlots:
    """Page allocator of one engine's LoRA bank. Use it from the engine's event loop.

    Args:
        pages: number of pages of the bank.
    """

    pages: int
    _residents: OrderedDict[str, ResidentAdapter] = field(default_factory=OrderedDict)
    """Adapters by digest, the most recently used last."""

    def __post_init__(self) -> None:
        self._free = list(range(self.pages))
        self._line = asyncio.Lock()
        """Lock held by the image that waits for pages; later ones queue in order."""
        self._changed = asyncio.Event()

    @property
    def digests(self) -> list[str]:
        """Digests of the loaded adapters, the most recently used first."""
        return [
            resident.digest
            for resident in reversed(self._residents.values())
            if is_loaded(resident)
        ]

    @property
    def free_pages(self) -> int:
        """Number of bank pages that no adapter occupies."""
        return len(self._free)

    def has(self, adapters: Sequence[RequestedLora]) -> bool:
        """Return whether an image with these adapters can begin without waiting for pages."""
        residents = [self._residents.get(adapter.digest) for adapter in adapters]
        return all(
            adapter is not None and is_loaded(adapter) and not adapter.is_evicting
            for adapter in residents
        )

    @asynccontextmanager
    async def reserve(
        self, adapters: Sequence[RequestedLora], load: Load
    ) -> AsyncIterator[list[int]]:
        """Yield the pages of these adapters, concatenated in order, once all are loaded.

        Args:
            load: called once for each missing adapter, in its own task.

        Raises: ValueError: they need more pages than the bank has. Errors of `load` propagate.
        """
        residents = await self._take(adapters, load)
        try:
            for resident in residents:
                await asyncio.shield(resident.loading)
            yield [page for resident in residents for page in resident.pages]
        finally:
            for resident in residents:
                self._release(resident)

    async def _take(self, adapters: Sequence[RequestedLora], load: Load) -> list[ResidentAdapter]:
        distinct = {adapter.digest: adapter for adapter in adapters}
        needed = sum(adapter.pages for adapter in distinct.values())
        if needed > self.pages:
            raise ValueError(
                f"its adapters take {needed} pages, and this pool has {self.pages} (lora_pages)"
            )
        if not self._may_pass(distinct):
            async with self._line:
                await self._make_room(distinct, load)
        return [self._enter(adapter) for adapter in adapters]

    def _may_pass(self, distinct: dict[str, RequestedLora]) -> bool:
        residents = [self._residents.get(digest) for digest in distinct]
        return all(resident is not None and not resident.is_evicting for resident in residents)

    async def _make_room(self, distinct: dict[str, RequestedLora], load: Load) -> None:
        """Allocate bank pages for all missing adapters, and begin to load them."""
        try:
            while True:
                missing = [
                    entry for digest, entry in distinct.items() if digest not in self._residents
                ]
                if self._evict(sum(entry.pages for entry in missing), distinct.keys()):
                    break
                self._changed.clear()
                await self._changed.wait()
            for adapter in missing:
                self._load(adapter, load)
        finally:
            for entry in self._residents.values():
                entry.is_evicting = False

    def _evict(self, needed: int, stay: Collection[str]) -> bool:
        """Free `needed` bank pages; if that is impossible now, mark adapters for eviction.

        Args:
            stay: digests of adapters to keep.
        """
        coming = len(self._free)
        for resident in [
            resident for resident in self._residents.values() if resident.digest not in stay
        ]:
            if coming >= needed:
                break
            coming += len(resident.pages)
            resident.is_evicting = True
            if not resident.users:
                self._remove(resident)
        return len(self._free) >= needed

    def _load(self, adapter: RequestedLora, load: Load) -> None:
        pages = tuple(self._free.pop(0) for _ in range(adapter.pages))
        task = asyncio.ensure_future(load(adapter, pages))
        resident = self._residents[adapter.digest] = ResidentAdapter(adapter.digest, pages, task)
        resident.users += 1  # the load itself counts as a user

        def loaded(_: asyncio.Future[None]) -> None:
            if task.cancelled() or task.exception():
                self._residents.pop(resident.digest, None)
            self._release(resident)

        task.add_done_callback(loaded)

    def _enter(self, adapter: RequestedLora) -> ResidentAdapter:
        resident = self._residents[adapter.digest]
        self._residents.move_to_end(adapter.digest)
        resident.users += 1
        return resident

    def _release(self, resident: ResidentAdapter) -> None:
        resident.users -= 1
        if not resident.users and self._residents.get(resident.digest) is not resident:
            self._free.extend(resident.pages)  # loading failed
        self._changed.set()

    def _remove(self, resident: ResidentAdapter) -> None:
        del self._residents[resident.digest]
        self._free.extend(resident.pages)


def is_loaded(resident: ResidentAdapter) -> bool:
    """Return whether a resident adapter has finished loading."""
    return resident.loading.done()
