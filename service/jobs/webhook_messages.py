"""The ends of jobs that clients want to be told of by webhook: what is still to be sent."""

from __future__ import annotations

from collections.abc import Mapping

from service.jobs.scripts import webhooks
from service.jobs.scripts.client import ANSWER_MS, Calls, new_call
from service.jobs.scripts.webhooks import Announcement


class Announcements(Calls):
    """Part of a `Queue` that a sender of webhooks uses."""

    async def announced(
        self, *, lease_s: float, most: int, each: int, busy: Mapping[str, int]
    ) -> list[Announcement]:
        """Take messages that are due, the tenants by turns; they come again after the lease.

        Args:
            most: messages in all.
            each: messages of one tenant, with those that are `busy`.
            busy: messages by tenant that the caller has taken before and is still sending.
        """
        return await self._run(
            webhooks.Announced(
                call=new_call(),
                answer_ms=ANSWER_MS,
                lease_s=lease_s,
                most=most,
                each=each,
                busy=dict(busy),
            )
        )

    async def announce_later(self, one: Announcement, in_s: float) -> None:
        """Bring it again in a while, with the failures that it has by now."""
        await self._run(webhooks.AnnounceLater(one.job_id, one.tenant, in_s, one.failed))

    async def announce_no_more(self, one: Announcement) -> None:
        """Remove a message that was delivered or is given up."""
        await self._run(webhooks.AnnounceNoMore(one.job_id, one.tenant))
