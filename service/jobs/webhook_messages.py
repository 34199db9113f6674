"""Webhook messages about ended jobs that are still to be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.jobs.scripts.client import ANSWER_MS, QueueClient, new_call
from service.jobs.scripts.script import Script, ScriptWithoutAnswer


@dataclass(frozen=True)
class Announcement:
    """Webhook message about an ended job."""

    tenant: str
    job_id: str
    failed: int
    """Number of failed attempts."""


@dataclass(frozen=True)
class Announced(Script[list[Announcement]]):
    """Script call that acquires due webhook messages."""

    call: str
    answer_ms: int
    lease_s: float
    most: int
    """Maximum number of messages."""
    each: int
    """Maximum number of messages per tenant, including its `busy` ones."""
    busy: Mapping[str, int]
    """Number of messages by tenant that are being sent."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> list[Announcement]:
        """Return the acquired webhook messages."""
        return [Announcement(tenant, job_id, int(failed)) for tenant, job_id, failed in answer]


@dataclass(frozen=True)
class AnnounceLater(ScriptWithoutAnswer):
    """Script call that schedules the next attempt to deliver a webhook message."""

    id: str
    tenant: str
    in_s: float
    failed: int
    """Number of failed attempts."""


@dataclass(frozen=True)
class AnnounceNoMore(ScriptWithoutAnswer):
    """Script call that removes a webhook message that was delivered or given up."""

    id: str
    tenant: str


class Announcements(QueueClient):
    """Part of a `Queue` that senders of webhooks use."""

    async def announced(
        self, *, lease_s: float, most: int, each: int, busy: Mapping[str, int]
    ) -> list[Announcement]:
        """Acquire due webhook messages from all tenants in turn, for the time of a lease.

        Args:
            most: maximum number of messages.
            each: maximum number of messages per tenant, including its `busy` ones.
            busy: number of messages by tenant that the caller is still sending.
        """
        return await self.run(
            Announced(
                call=new_call(),
                answer_ms=ANSWER_MS,
                lease_s=lease_s,
                most=most,
                each=each,
                busy=dict(busy),
            )
        )

    async def announce_later(self, message: Announcement, in_s: float) -> None:
        """Schedule a webhook message's next attempt, with its failures so far."""
        await self.run(AnnounceLater(message.job_id, message.tenant, in_s, message.failed))

    async def announce_no_more(self, message: Announcement) -> None:
        """Remove a webhook message that was delivered or given up."""
        await self.run(AnnounceNoMore(message.job_id, message.tenant))
