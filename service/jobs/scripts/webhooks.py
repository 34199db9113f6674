"""Scripts that senders of webhooks run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.jobs.scripts.script import Script, Silent


@dataclass(frozen=True)
class Announcement:
    """Message of an ended job."""

    tenant: str
    job_id: str
    failed: int
    """Attempts so far."""


@dataclass(frozen=True)
class Announced(Script[list[Announcement]]):
    """Claim messages that are due."""

    call: str
    answer_ms: int
    lease_s: float
    most: int
    """Messages in all."""
    each: int
    """Messages of one tenant, with those that are `busy`."""
    busy: Mapping[str, int]
    """Messages by tenant that are being sent."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> list[Announcement]:
        """Return the announcements that are due."""
        return [Announcement(tenant, job_id, int(failed)) for tenant, job_id, failed in answer]


@dataclass(frozen=True)
class AnnounceLater(Silent):
    """Put a message back, to be sent again."""

    id: str
    tenant: str
    in_s: float
    failed: int
    """Attempts so far."""


@dataclass(frozen=True)
class AnnounceNoMore(Silent):
    """Remove a message that was taken, or is given up."""

    id: str
    tenant: str
