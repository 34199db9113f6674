"""The ends of jobs that clients want to be told of by webhook: what is still to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.jobs.calls import ANSWER_MS, Calls, new_call


@dataclass(frozen=True)
class Announcement:
    """An ended job's message."""

    tenant: str
    job_id: str
    failed: int
    """Attempts so far."""


class Announcements(Calls):
    """Fulfils what a sender of webhooks asks of a `Queue`."""

    async def announced(
        self, *, lease_s: float, most: int, each: int, busy: Mapping[str, int]
    ) -> list[Announcement]:
        """Take messages that are due, the tenants by turns; they come again after the lease.

        Args:
            most: messages in all.
            each: messages of one tenant, with those that are `busy`.
            busy: messages by tenant that the caller has taken before and is still sending.
        """
        rows = await self._run(
            "announced",
            call=new_call(),
            answer_ms=ANSWER_MS,
            lease_s=lease_s,
            most=most,
            each=each,
            busy=dict(busy),
        )
        return [Announcement(tenant, job_id, int(failed)) for tenant, job_id, failed in rows]

    async def announce_later(self, one: Announcement, in_s: float) -> None:
        """Bring it again in a while, with the failures that it has by now."""
        await self._run(
            "announce_later",
            id=one.job_id,
            tenant=one.tenant,
            in_s=in_s,
            failed=one.failed,
        )

    async def announce_no_more(self, one: Announcement) -> None:
        """It was taken, or is given up."""
        await self._run("announce_no_more", id=one.job_id, tenant=one.tenant)
