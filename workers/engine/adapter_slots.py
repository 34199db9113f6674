"""Slots of a bank: which adapters lie in which pages, who uses them, and who leaves for whom.

Images hold their adapters from encoding to the last step. One whose adapters are all there waits
for nobody; one that brings others in takes free pages, or those of the least recently used. Where
all are in use it says which of them are to leave: nobody else begins with those, so its wait has an
end. Pages of an adapter need not lie side by side.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from models.spec.lora import RequestedLora

Load = Callable[[RequestedLora, Sequence[int]], Awaitable[None]]
"""Read an adapter into these pages."""


@dataclass(eq=False)
class Resident:
    """Adapter that has pages."""

    digest: str
    pages: tuple[int, ...]
    loading: asyncio.Future[None]
    """Future of its being there."""
    users: int = 0
    is_leaving: bool = False
    """True if it goes when its last user does: somebody waits for its pages."""


@dataclass(eq=False)
class AdapterSlots:
    """Slots of one engine, to be used from its event loop.

    Args:
        pages: of the bank.
    """

    pages: int
    _residents: OrderedDict[str, Resident] = field(default_factory=OrderedDict)
    """Adapters by digest; the one used last is the last."""

    def __post_init__(self) -> None:
        self._free = list(range(self.pages))
        self._line = asyncio.Lock()
        """Held by the one that waits for pages; others wait behind it, in order."""
        self._changed = asyncio.Event()

    @property
    def digests(self) -> list[str]:
        """Digests of the adapters that are there, the last used one first."""
        return [one.digest for one in reversed(self._residents.values()) if is_there(one)]

    @property
    def free_pages(self) -> int:
        """Number of pages that no adapter has."""
        return len(self._free)

    def has(self, adapters: Sequence[RequestedLora]) -> bool:
        """Return whether an image with these would begin without a wait."""
        found = [self._residents.get(one.digest) for one in adapters]
        return all(one is not None and is_there(one) and not one.is_leaving for one in found)

    @asynccontextmanager
    async def holding(
        self, adapters: Sequence[RequestedLora], load: Load
    ) -> AsyncIterator[list[int]]:
        """Yield the pages of these adapters, one adapter behind the other, once they are there.

        Args:
            load: called once for each that comes in, in a task of its own.

        Raises: ValueError: they are more than the bank has; and whatever `load` raises.
        """
        held = await self._take(adapters, load)
        try:
            for one in held:
                await asyncio.shield(one.loading)
            yield [page for one in held for page in one.pages]
        finally:
            for one in held:
                self._release(one)

    async def _take(self, adapters: Sequence[RequestedLora], load: Load) -> list[Resident]:
        distinct = {one.digest: one for one in adapters}
        needed = sum(one.pages for one in distinct.values())
        if needed > self.pages:
            raise ValueError(
                f"its adapters take {needed} pages, and this pool has {self.pages} (lora_pages)"
            )
        if not self._may_pass(distinct):
            async with self._line:
                await self._make_room(distinct, load)
        return [self._enter(one) for one in adapters]

    def _may_pass(self, distinct: dict[str, RequestedLora]) -> bool:
        found = [self._residents.get(digest) for digest in distinct]
        return all(one is not None and not one.is_leaving for one in found)

    async def _make_room(self, distinct: dict[str, RequestedLora], load: Load) -> None:
        """Return when there are pages for all that is missing."""
        try:
            while True:
                missing = [one for digest, one in distinct.items() if digest not in self._residents]
                if self._evict(sum(one.pages for one in missing), distinct.keys()):
                    break
                self._changed.clear()
                await self._changed.wait()
            for adapter in missing:
                self._bring(adapter, load)
        finally:
            for one in self._residents.values():
                one.is_leaving = False

    def _evict(self, needed: int, stay: Collection[str]) -> bool:
        """Free so many pages; where that is not possible now, mark what is to leave.

        Args:
            stay: digests of those that do not.
        """
        coming = len(self._free)
        for one in [one for one in self._residents.values() if one.digest not in stay]:
            if coming >= needed:
                break
            coming += len(one.pages)
            one.is_leaving = True
            if not one.users:
                self._remove(one)
        return len(self._free) >= needed

    def _bring(self, adapter: RequestedLora, load: Load) -> None:
        pages = tuple(self._free.pop(0) for _ in range(adapter.pages))
        task = asyncio.ensure_future(load(adapter, pages))
        one = self._residents[adapter.digest] = Resident(adapter.digest, pages, task)
        one.users += 1  # until it is loaded, whoever may leave meanwhile

        def loaded(_: asyncio.Future[None]) -> None:
            if task.cancelled() or task.exception():
                self._residents.pop(one.digest, None)
            self._release(one)

        task.add_done_callback(loaded)

    def _enter(self, adapter: RequestedLora) -> Resident:
        one = self._residents[adapter.digest]
        self._residents.move_to_end(adapter.digest)
        one.users += 1
        return one

    def _release(self, one: Resident) -> None:
        one.users -= 1
        if not one.users and self._residents.get(one.digest) is not one:
            self._free.extend(one.pages)  # it could not be loaded
        self._changed.set()

    def _remove(self, one: Resident) -> None:
        del self._residents[one.digest]
        self._free.extend(one.pages)


def is_there(one: Resident) -> bool:
    """Return whether an adapter is loaded."""
    return one.loading.done()
