"""Webhook messages about ended jobs that are still to be sent."""

from __future__ import annotations

from collections.abc import Mapping

from service.jobs.scripts import webhooks
from service.jobs.scripts.client import ANSWER_MS, QueueClient, new_call
from service.jobs.scripts.webhooks import Announcement


class Announcements(QueueClient):
    """Part of a `Queue` that senders of webhooks use."""

    async def announced(
        self, *, lease_s: float, most: int, each: int, busy: Mapping[str, int]
    ) -> list[Announcement]:
        """Acquire due messages from all tenants in turn. They become due again after the lease.

        Args:
            most: maximum number of messages.
            each: maximum number of messages per tenant, including its `busy` ones.
            busy: number of messages by tenant that the caller is still sending.
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

    async def announce_later(self, message: Announcement, in_s: float) -> None:
        """Schedule a message's next attempt, with its failures so far."""
        await self._run(
            webhooks.AnnounceLater(message.job_id, message.tenant, in_s, message.failed)
        )

    async def announce_no_more(self, message: Announcement) -> None:
        """Remove a message that was delivered or given up."""
        await self._run(webhooks.AnnounceNoMore(message.job_id, message.tenant))
