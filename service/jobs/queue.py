"""Client of the job queue. Each transition of a job is one atomic Lua script, by Redis's clock.

Each script may be sent twice: a command is repeated if its answer was lost with the connection.
"""

from __future__ import annotations

from service.jobs.batches import BatchRecords
from service.jobs.claim_reports import Claim, ClaimList, ClaimUsage, StageReport
from service.jobs.consumer import Consumer, WorkerState
from service.jobs.endpoint_state import EndpointState
from service.jobs.events import Event
from service.jobs.ledger_files import LedgerFiles
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
from service.jobs.producer import AcceptedJob, Producer
from service.jobs.profiles import Profiles
from service.jobs.registered_models import Depth, ModelStatus, RegisteredModels
from service.jobs.stored_jobs import StoredJobs
from service.jobs.webhook_messages import Announcement, Announcements

__all__ = [
    "AcceptedJob",
    "Announcement",
    "Claim",
    "ClaimList",
    "ClaimUsage",
    "Depth",
    "Event",
    "IdempotencyConflict",
    "LoraBusy",
    "ModelStatus",
    "Queue",
    "QueueFull",
    "QuotaExceeded",
    "QuotaUsage",
    "StageReport",
    "UnknownCursor",
    "WireError",
    "WorkerState",
]


class Queue(
    Producer,
    StoredJobs,
    RegisteredModels,
    Consumer,
    Maintenance,
    Profiles,
    Announcements,
    LoraRecords,
    EndpointState,
    BatchRecords,
    Operations,
    LedgerFiles,
):
    """Client with all parts of the queue over one connection."""
