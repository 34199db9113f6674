"""Concurrency limits for expensive work, fair between tenants."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # workers use limiters, too, without a web framework
    from service.http.inflight_limits import SharedLimit

_Line = OrderedDict[asyncio.Future[None], None]
"""Waiting callers of one tenant, in order of arrival."""


class FairQueue:
    """Limiter of `each` concurrent holders per name, such as a host.

    A free slot goes to the tenants in round-robin order, within a tenant first come, first served.
    All operations take constant time.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self.used: Counter[str] = Counter()
        """Number of slots in use, by name."""
        self._lines: dict[str, OrderedDict[str, _Line]] = {}
        """Waiting callers by name and tenant. The first tenant is next."""

    def has_slot(self, name: str) -> bool:
        """Check for a free slot of this name."""
        return self.used[name] < self._each

    async def acquire(self, name: str, tenant: str) -> None:
        """Wait for a slot. The caller must return it with `release`."""
        if self.has_slot(name):
            self.used[name] += 1
            return
        granted = asyncio.get_running_loop().create_future()
        self._lines.setdefault(name, OrderedDict()).setdefault(tenant, OrderedDict())[granted] = (
            None
        )
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._remove(name, tenant, granted)
            else:
                self.release(name)
            raise

    def release(self, name: str) -> None:
        """Pass a slot to the next waiting caller, or release it."""
        if granted := self._next(name):
            granted.set_result(None)
            return
        self.used[name] -= 1
        if not self.used[name]:
            del self.used[name]

    def _next(self, name: str) -> asyncio.Future[None] | None:
        while lines := self._lines.get(name):
            tenant, line = lines.popitem(last=False)
            granted, _ = line.popitem(last=False)
            if line:
                lines[tenant] = line  # moves to the end of the round
            if not lines:
                del self._lines[name]
            if not granted.done():
                return granted
        return None

    def _remove(self, name: str, tenant: str, granted: asyncio.Future[None]) -> None:
        lines = self._lines.get(name)
        line = lines and lines.get(tenant)
        if not lines or not line:  # its future was granted and passed on
            return
        line.pop(granted, None)
        if not line:
            del lines[tenant]
        if not lines:
            del self._lines[name]


class FairLimiter:
    """Limiter of `total` concurrent holders: `each` per tenant, `per_host` per host.

    The three slots are acquired in order: tenant, host, total. A caller that waits for a host holds
    only its tenant's slot.
    """

    def __init__(
        self, total: int, each: int, per_host: int | None = None, line: SharedLimit | None = None
    ) -> None:
        """Create the limiter with all slots free.

        Args:
            line: limits the callers that hold or wait for a slot; None: no limit here.
        """
        self.total, self.each = total, each
        self._line = line
        self._tenants, self._hosts, self._all = (
            FairQueue(each),
            FairQueue(per_host or total),
            FairQueue(total),
        )

    @property
    def tenants(self) -> Counter[str]:
        """Slots in use by tenant, including those of callers that wait for a host or the total."""
        return self._tenants.used

    @property
    def free(self) -> int:
        """Number of slots of the limiter that no caller holds."""
        return self.total - self._all.used[""]

    @asynccontextmanager
    async def slot(self, tenant: str, host: str = "") -> AsyncIterator[None]:
        """Wait for a slot of the limiter and hold it. Raises: Busy, Unavailable: too many wait."""
        with await self.acquire(tenant, host):
            yield

    async def acquire(self, tenant: str, host: str = "") -> ExitStack:
        """Wait for a slot, which the caller closes. Raises: as `slot`."""
        with ExitStack() as place:
            if self._line:
                place.enter_context(self._line.holding(tenant, 1))
            for queue, name in self._needed_slots(tenant, host):
                await queue.acquire(name, tenant)
                place.callback(queue.release, name)
            return place.pop_all()

    def try_acquire(self, tenant: str, host: str = "") -> ExitStack | None:
        """Acquire a slot without waiting, if one is free. The caller closes it."""
        queues = self._needed_slots(tenant, host)
        if not all(queue.has_slot(name) for queue, name in queues):
            return None
        place = ExitStack()
        for queue, name in queues:
            queue.used[name] += 1
            place.callback(queue.release, name)
        return place

    def _needed_slots(self, tenant: str, host: str) -> list[tuple[FairQueue, str]]:
        of_host = [(self._hosts, host)] if host else []
        return [(self._tenants, tenant), *of_host, (self._all, "")]
