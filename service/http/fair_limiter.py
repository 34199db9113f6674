"""Places for work that costs something: no tenant takes them all, and none waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # workers have limiters, too, and do without a web framework
    from service.http.inflight_limits import Shared

_Line = OrderedDict[asyncio.Future[None], None]
"""Waiting callers of one tenant, in the order in which they came."""


class FairQueue:
    """Limiter of `each` concurrent holders a name.

    A free place goes to the tenants by turns, and of one tenant to whoever came first. Nothing here
    takes longer where more wait.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self.taken: Counter[str] = Counter()
        """Places, by name."""
        self._lines: dict[str, OrderedDict[str, _Line]] = {}
        """Waiting lines by name and tenant; the tenant whose turn is next stands first."""

    def has_place(self, name: str) -> bool:
        """Return whether this name may take another slot."""
        return self.taken[name] < self._each

    async def take(self, name: str, tenant: str) -> None:
        """Wait for a place; whoever got it has to `give` it back."""
        if self.has_place(name):
            self.taken[name] += 1
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
                self.give(name)
            raise

    def give(self, name: str) -> None:
        """Give a place to the next, or back."""
        if granted := self._next(name):
            granted.set_result(None)
            return
        self.taken[name] -= 1
        if not self.taken[name]:
            del self.taken[name]

    def _next(self, name: str) -> asyncio.Future[None] | None:
        while lines := self._lines.get(name):
            tenant, line = lines.popitem(last=False)
            granted, _ = line.popitem(last=False)
            if line:
                lines[tenant] = line  # behind all other tenants
            if not lines:
                del self._lines[name]
            if not granted.done():
                return granted
        return None

    def _remove(self, name: str, tenant: str, granted: asyncio.Future[None]) -> None:
        lines = self._lines.get(name)
        line = lines and lines.get(tenant)
        if not lines or not line:  # its turn came, and was passed on
            return
        line.pop(granted, None)
        if not line:
            del lines[tenant]
        if not lines:
            del self._lines[name]


class FairLimiter:
    """Limiter of `total` concurrent holders: `each` for one tenant, `per_host` for one host.

    They are waited for one after the other: whoever waits for a host holds no place but its
    tenant's, and whoever waits for one of `total` has the other two.
    """

    def __init__(
        self, total: int, each: int, per_host: int | None = None, line: Shared | None = None
    ) -> None:
        """Make places.

        Args:
            line: bounds those who have a place or wait for one; None: something else does.
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
        """Places by tenant, those included that wait for a host's or one of all."""
        return self._tenants.taken

    @property
    def free(self) -> int:
        """Number of places that nobody has."""
        return self.total - self._all.taken[""]

    @asynccontextmanager
    async def place(self, tenant: str, host: str = "") -> AsyncIterator[None]:
        """Wait for a place and hold it. Raises: Busy, Unavailable: too many wait."""
        with await self.take(tenant, host):
            yield

    async def take(self, tenant: str, host: str = "") -> ExitStack:
        """Wait for a place; to be closed by whoever gets it. Raises: as `place`."""
        with ExitStack() as place:
            if self._line:
                place.enter_context(self._line.holding(tenant, 1))
            for turns, name in self._wanted(tenant, host):
                await turns.take(name, tenant)
                place.callback(turns.give, name)
            return place.pop_all()

    def enter(self, tenant: str, host: str = "") -> ExitStack | None:
        """A place if there is one now; to be closed by whoever gets it."""
        wanted = self._wanted(tenant, host)
        if not all(turns.has_place(name) for turns, name in wanted):
            return None
        place = ExitStack()
        for turns, name in wanted:
            turns.taken[name] += 1
            place.callback(turns.give, name)
        return place

    def _wanted(self, tenant: str, host: str) -> list[tuple[FairQueue, str]]:
        of_host = [(self._hosts, host)] if host else []
        return [(self._tenants, tenant), *of_host, (self._all, "")]
