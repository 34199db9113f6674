"""Calls of the scripts that senders of webhooks run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    """Acquire due messages."""

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
        """Return the acquired messages."""
        return [Announcement(tenant, job_id, int(failed)) for tenant, job_id, failed in answer]


@dataclass(frozen=True)
class AnnounceLater(ScriptWithoutAnswer):
    """Schedule the next attempt of a message."""

    id: str
    tenant: str
    in_s: float
    failed: int
    """Number of failed attempts."""


@dataclass(frozen=True)
class AnnounceNoMore(ScriptWithoutAnswer):
    """Remove a message that was delivered or given up."""

    id: str
    tenant: str
