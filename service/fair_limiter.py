"""Places for work that costs something: no tenant takes them all, and none waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Waiting:
    host: str
    granted: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class FairLimiter:
    """At most `total` places: `each` for one tenant, `per_host` for one host.

    A free place goes to the tenants by turns, and of one tenant to whoever came first.
    """

    def __init__(self, total: int, each: int, per_host: int | None = None) -> None:
        self.total, self.each = total, each
        self._per_host = per_host or total
        self.tenants: Counter[str] = Counter()
        """Places taken, by tenant."""
        self._hosts: Counter[str] = Counter()
        self._waiting: dict[str, list[_Waiting]] = {}
        """By tenant; the one whose turn is next stands first."""

    @property
    def free(self) -> int:
        """Number of places that nobody has."""
        return self.total - self.tenants.total()

    @asynccontextmanager
    async def place(self, tenant: str, host: str = "") -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        await self._wait(tenant, host)
        try:
            yield
        finally:
            self.leave(tenant, host)

    def enter(self, tenant: str, host: str = "") -> bool:
        """Take a place if there is one now; whoever got it has to `leave`."""
        if not self._has_place(tenant, host):
            return False
        self.tenants[tenant] += 1
        self._hosts[host] += 1
        return True

    def leave(self, tenant: str, host: str = "") -> None:
        """Give a place back."""
        for counter, name in ((self.tenants, tenant), (self._hosts, host)):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]
        self._hand_out()

    def _has_place(self, tenant: str, host: str) -> bool:
        of_host = not host or self._hosts[host] < self._per_host
        return self.free > 0 and self.tenants[tenant] < self.each and of_host

    async def _wait(self, tenant: str, host: str) -> None:
        one = _Waiting(host)
        self._waiting.setdefault(tenant, []).append(one)
        self._hand_out()
        try:
            await one.granted
        except asyncio.CancelledError:
            if one.granted.cancelled():
                self._remove(tenant, one)
            else:
                self.leave(tenant, host)
            raise

    def _hand_out(self) -> None:
        while found := self._next():
            tenant, one = found
            self.enter(tenant, one.host)
            self._remove(tenant, one)
            if others := self._waiting.pop(tenant, None):
                self._waiting[tenant] = others  # behind all other tenants
            one.granted.set_result(None)

    def _next(self) -> tuple[str, _Waiting] | None:
        for tenant, waiting in self._waiting.items():
            for one in waiting:
                if not one.granted.done() and self._has_place(tenant, one.host):
                    return tenant, one
        return None

    def _remove(self, tenant: str, one: _Waiting) -> None:
        self._waiting[tenant].remove(one)
        if not self._waiting[tenant]:
            del self._waiting[tenant]
