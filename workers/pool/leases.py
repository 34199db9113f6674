"""Leases: renewed while the pool works on its claims, so that nobody else takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from service.jobs.model.lease import RENEWALS
from service.jobs.queue import Claim, Queue
from workers.pool.usage import Bill
from workers.retry import QUEUE_ERRORS

log = logging.getLogger(__name__)


class Leases:
    """The claims that are worked on now.

    Args:
        on_lost: told of each claim that is no longer ours: canceled, expired, or lapsed and given
            to another pool.
    """

    def __init__(self, queue: Queue, lease_s: float, on_lost: Callable[[Claim], None]) -> None:
        self._queue = queue
        self._every_s = lease_s / RENEWALS
        self._on_lost = on_lost
        self._held: dict[str, tuple[Claim, Bill]] = {}

    def hold(self, claim: Claim, bill: Bill) -> None:
        """Renew the lease of a claim from now on."""
        self._held[claim.job.id] = claim, bill

    def holds(self, claim: Claim) -> bool:
        """Return whether the claim is still ours, as far as is known."""
        held = self._held.get(claim.job.id)
        return held is not None and held[0] is claim

    def drop(self, claim: Claim) -> None:
        """Done with it, one way or the other."""
        if self.holds(claim):
            del self._held[claim.job.id]

    async def run(self) -> None:
        """Renew until canceled. Without Redis nothing lapses: the clock of leases is its own."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._renew()
            except QUEUE_ERRORS as error:
                log.warning("leases cannot be renewed now: %s", error)

    async def _renew(self) -> None:
        if not self._held:
            return
        claims, bills = zip(*self._held.values(), strict=True)
        for claim in await self._queue.renew(claims, [bill.spent for bill in bills]):
            self.drop(claim)
            self._on_lost(claim)
