"""Calls of the scripts that front ends run for jobs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from models.spec.model_spec import ModelSpec
from service.jobs.model import quota_usage, serialization
from service.jobs.model.job import Job, JobState
from service.jobs.model.ledger import DeliveredOutputs
from service.jobs.scheduling.cost_model import MAX_COSTS, CostKey, CostRow, CostTable, PoolFacts
from service.jobs.scheduling.queue_snapshot import QueueSnapshot
from service.jobs.scripts.script import TEXT, Script, ScriptWithoutAnswer

log = logging.getLogger(__name__)

Hash = dict[str, str]
"""Hash of a job, including fields that only the scripts use."""


@dataclass(frozen=True)
class ModelStatus:
    """Model with its registered workers."""

    spec: ModelSpec
    pools: tuple[str, ...]
    """Names of the workers with a fresh heartbeat."""
    ready: bool
    """Whether at least one of them has finished its warm-up."""


@dataclass(frozen=True)
class Depth:
    """Length, age and cost of one model's queue."""

    queued: int
    running: int
    oldest_s: float
    """Seconds since the oldest queued job was queued; 0: none is queued."""
    backlog_s: float
    """Predicted device-seconds of queued jobs and of the rest of running ones."""


class NewJob(NamedTuple):
    """Answer to a `Put` of a new job: facts that Redis determines."""

    created_at: float
    rank: int
    """Number of its tenant's jobs that go before it."""
    usage: quota_usage.QuotaUsage | None
    """Quota usage of its tenant, including this job; None: it has no quotas."""


class ExistingJob(NamedTuple):
    """Answer to a `Put` whose job existed already."""

    job: Job
    is_new: bool
    """True if this very call created the job and its first answer was lost."""


class OverQuota(NamedTuple):
    """Answer to a `Put` that exceeds a quota, with the tenant's usage."""

    quota: str
    usage: quota_usage.QuotaUsage
    oldest: str | None
    """Id of its oldest queued job."""


Refusal = Literal["full", "conflict", "refused"]


@dataclass(frozen=True)
class Deposit(ScriptWithoutAnswer):
    """Announce that files of a job are about to be stored."""

    id: str


@dataclass(frozen=True)
class Put(Script[NewJob | ExistingJob | OverQuota | Refusal]):
    """Accept a job."""

    id: str
    model: str
    tenant: str
    priority: int
    priority_s: float
    """Maximum extra wait that one level of priority may cause for other jobs."""
    deadline_at: float | None
    run_s: float | None
    """Predicted seconds alone."""
    max_queued: int
    """Maximum number of queued jobs of the model, over all tenants."""
    tenant_max_queued: int | None
    device_seconds_per_hour: float | None
    stored_bytes: int | None
    cost: float
    """Predicted device-seconds."""
    input_bytes: int
    """Bytes of its stored inputs."""
    kept: int | None
    """Number of steps of its drafts; None: no drafts."""
    draft_bytes: int
    """Bytes of its drafts, which are deleted when it ends."""
    made: DeliveredOutputs | None
    """Sums of its copied files; None: it must be generated."""
    retention_s: float
    idempotency: str | None
    """Name of the client's idempotency key."""
    digest: str
    """Digest of the request's body."""
    idempotency_ms: int
    refused: bool
    """Whether to reject a new job."""
    webhook: bool
    """Whether to announce its end by webhook."""
    fields: Sequence[str] = field(metadata=TEXT)
    """Fields of its hash: name, value, …"""

    @staticmethod
    def parse(answer: Sequence[Any]) -> NewJob | ExistingJob | OverQuota | Refusal:
        """Return the accepted job's facts, or the reason for a rejection."""
        match answer:
            case ["new", created_at, rank, *taken]:
                usage = quota_usage.QuotaUsage.parse(taken[0]) if taken else None
                return NewJob(float(created_at), rank, usage)
            case [("again" | "old") as outcome, job]:
                return ExistingJob(
                    serialization.from_hash(serialization.parse(job)), outcome == "again"
                )
            case ["quota", quota, taken, *oldest]:
                return OverQuota(quota, quota_usage.QuotaUsage.parse(taken), *(oldest or [None]))
            case [("full" | "conflict" | "refused") as refusal]:
                return refusal
        raise ValueError(f"put.lua answered {answer!r}")


@dataclass(frozen=True)
class ReadQuota(Script[quota_usage.QuotaUsage]):
    """Read a tenant's usage of its quotas."""

    tenant: str
    device_seconds_per_hour: float | None
    retention_s: float

    @staticmethod
    def parse(answer: Sequence[str | int]) -> quota_usage.QuotaUsage:
        """Return the tenant's usage."""
        return quota_usage.QuotaUsage.parse(answer)


@dataclass(frozen=True)
class Get(Script[Job | None]):
    """Read a job."""

    id: str

    @staticmethod
    def parse(answer: str | None) -> Job | None:
        """Return the job, or None if there is no such job."""
        return serialization.from_hash(serialization.parse(answer)) if answer else None


class JobList(list[Job]):
    """Page of jobs, newest first.

    Args:
        next: id of the job after which the next page starts; None: this is the last page.
    """

    def __init__(self, jobs: Iterable[Job], next: str | None) -> None:
        super().__init__(jobs)
        self.next = next


@dataclass(frozen=True)
class List(Script[JobList | None]):
    """Read a page of a tenant's jobs, newest first."""

    tenant: str
    states: Sequence[JobState]
    after: str | None
    """Id of the job after which the page starts."""
    limit: int
    looked_at: int
    """Maximum number of jobs scanned for the next three filters."""
    model: str | None
    metadata_key: str | None
    metadata_value: str | None
    created_from: int | None
    """Microseconds since the epoch."""
    created_before: int | None

    @staticmethod
    def parse(answer: Sequence[str] | None) -> JobList | None:
        """Return the page, or None if the cursor is unknown."""
        if answer is None:
            return None
        after, *texts = answer
        jobs = (serialization.from_hash(serialization.parse(text)) for text in texts)
        return JobList(jobs, after or None)


@dataclass(frozen=True)
class ReadQueue(Script[QueueSnapshot]):
    """Read a model's queued and running jobs."""

    model: str
    looked_at: int
    """Maximum number of running jobs, and of jobs with deadlines."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> QueueSnapshot:
        """Return the snapshot of the queue."""
        return QueueSnapshot.parse(answer)


@dataclass(frozen=True)
class SwitchModel(Script[bool]):
    """Move a queued job to another model's queue."""

    id: str
    model: str
    """Model in whose queue it waits."""
    to: str
    """Model to whose queue it moves."""
    served_by: str
    """Name of that model, or of the variant of it."""
    fingerprint: str

    @staticmethod
    def parse(answer: int) -> bool:
        """Return whether the job waits in the new queue."""
        return bool(answer)


class StopScript(Script[Hash | None]):
    """Base of scripts that stop a job, and return its hash afterwards."""

    @staticmethod
    def parse(answer: str | None) -> Hash | None:
        """Return the job's hash, or None if there is no such job."""
        return None if answer is None else serialization.parse(answer)


@dataclass(frozen=True)
class Cancel(StopScript):
    """Cancel a job. An ended job stays unchanged."""

    call: str
    id: str


@dataclass(frozen=True)
class Delete(StopScript):
    """Cancel a job if it has not ended, and delete it."""

    call: str
    id: str
    answer_ms: int


@dataclass(frozen=True)
class ReadModels(Script[dict[str, ModelStatus]]):
    """Read the registered models and their workers."""

    @staticmethod
    def parse(answer: Sequence[Sequence[str]]) -> dict[str, ModelStatus]:
        """Return the models sorted by name, without those that cannot be parsed."""
        statuses = [status for row in answer if (status := _status(*row))]
        return {status.spec.name: status for status in sorted(statuses, key=lambda s: s.spec.name)}


@dataclass(frozen=True)
class Depths(Script[dict[str, Depth]]):
    """Read the queue's depth by registered model."""

    looked_at: int
    """Maximum number of jobs with snapshots that are read."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> dict[str, Depth]:
        """Return the depths by model."""
        return {
            model: Depth(queued, running, float(oldest_s), float(backlog_s))
            for model, queued, running, oldest_s, backlog_s in answer
        }


@dataclass(frozen=True)
class ReadCosts(Script[CostTable]):
    """Read the measured costs of a model."""

    model: str

    @staticmethod
    def parse(answer: Sequence[Any]) -> CostTable:
        """Return the table of costs."""
        rows, pools, now = answer
        return CostTable(
            {CostKey.parse(name): _cost_row(text) for name, text in _pairs(rows)},
            {name: pool_facts(text) for name, text in _pairs(pools)},
            float(now),
        )


def _pairs(flat: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)


@lru_cache(maxsize=MAX_COSTS)
def _cost_row(text: str) -> CostRow:
    return CostRow.model_validate_json(text)


@lru_cache(maxsize=MAX_COSTS)
def pool_facts(text: str) -> PoolFacts:
    """Parse the description that a worker announces of itself."""
    facts = json.loads(text)  # written by Lua, which has no empty lists
    return PoolFacts(
        facts["layout"],
        facts["slots"],
        tuple(facts.get("warm") or ()),
        tuple(facts.get("adapters") or ()),
        facts.get("adapter_s", 0.0),
        facts.get("away_s", 0.0),
        facts.get("asleep", False),
    )


def _status(text: str, *pools: str) -> ModelStatus | None:
    spec = _spec(text)
    if spec is None:
        return None
    return ModelStatus(spec, tuple(sorted(pools[::2])), "ready" in pools[1::2])


@lru_cache(maxsize=256)
def _spec(text: str) -> ModelSpec | None:
    """Parse an announced spec; None: it has an unknown format of a newer version."""
    try:
        return ModelSpec.model_validate_json(text)
    except ValidationError as error:
        log.warning("a worker registered a model that this front end cannot read: %s", error)
        return None
