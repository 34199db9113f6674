"""The queue: every transition of a job's life, one atomic Lua script each, by Redis's clock.

Each script may be sent twice: a command whose answer got lost with its connection is repeated.
"""

from __future__ import annotations

from service.jobs.batches import BatchRecords
from service.jobs.consumer import Claim, Claims, Consumer, Doing
from service.jobs.door_records import DoorRecords
from service.jobs.events import Event
from service.jobs.ledger import LedgerRecords
from service.jobs.loras import LoraRecords
from service.jobs.maintenance import Maintenance
from service.jobs.model.errors import (
    IdempotencyConflict,
    LoraBusy,
    QueueFull,
    QuotaExceeded,
    UnknownCursor,
    WireError,
)
from service.jobs.model.quota_usage import QuotaUsage
from service.jobs.operations import Operations
from service.jobs.producer import Accepted, Producer
from service.jobs.profiles import Profiles
from service.jobs.scripts.consumer import Spent
from service.jobs.scripts.producer import Depth, ModelStatus
from service.jobs.scripts.webhooks import Announcement
from service.jobs.webhook_messages import Announcements

__all__ = [
    "Accepted",
    "Announcement",
    "Claim",
    "Claims",
    "Depth",
    "Doing",
    "Event",
    "IdempotencyConflict",
    "LoraBusy",
    "ModelStatus",
    "Queue",
    "QueueFull",
    "QuotaExceeded",
    "QuotaUsage",
    "Spent",
    "UnknownCursor",
    "WireError",
]


class Queue(
    Producer,
    Consumer,
    Maintenance,
    Profiles,
    Announcements,
    LoraRecords,
    DoorRecords,
    BatchRecords,
    Operations,
    LedgerRecords,
):
    """Queue with all of its sides, over one connection."""
