"""Lease renewal: extends the leases of the worker's claims, so that no other worker takes them."""

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
    """Leases of the claims that a worker holds, renewed together.

    Args:
        on_lost: called with each claim that is no longer valid: canceled, expired, or lapsed and
            reassigned.
    """

    def __init__(self, queue: Queue, lease_s: float, on_lost: Callable[[Claim], None]) -> None:
        self._queue = queue
        self._every_s = lease_s / RENEWALS
        self._on_lost = on_lost
        self._held: dict[str, tuple[Claim, Bill]] = {}

    def hold(self, claim: Claim, bill: Bill) -> None:
        """Start to renew the lease of a claim."""
        self._held[claim.job.id] = claim, bill

    def holds(self, claim: Claim) -> bool:
        """Return whether the claim is valid, as of the last renewal."""
        entry = self._held.get(claim.job.id)
        return entry is not None and entry[0] is claim

    def drop(self, claim: Claim) -> None:
        """Stop renewing the lease of a claim."""
        if self.holds(claim):
            del self._held[claim.job.id]

    async def run(self) -> None:
        """Renew leases until canceled. None lapses while Redis is down: it is their clock."""
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
