"""Scripts that front ends run."""

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
from service.jobs.model.ledger import Delivered
from service.jobs.scheduling.cost_model import MAX_COSTS, CostKey, CostRow, CostTable, PoolFacts
from service.jobs.scheduling.queue_snapshot import QueueSnapshot
from service.jobs.scripts.script import TEXT, Script, Silent

log = logging.getLogger(__name__)

Hash = dict[str, str]
"""A job's, with the fields that only the scripts use."""


@dataclass(frozen=True)
class ModelStatus:
    """A model with its pools."""

    spec: ModelSpec
    pools: tuple[str, ...]
    """Names of the pools that serve it now (their heartbeat is fresh)."""
    ready: bool
    """Whether at least one of them has finished its warm-up."""


@dataclass(frozen=True)
class Depth:
    """Length and age of one model's queue."""

    queued: int
    running: int
    oldest_s: float
    """Seconds since the longest-waiting queued job joined or rejoined; 0: none is queued."""
    backlog_s: float
    """Device-seconds, as predicted: of what is queued, and of what running jobs have left."""


class Queued(NamedTuple):
    """Answer to a `Put` of a new job: what its sender does not know of it yet."""

    created_at: float
    rank: int
    """Jobs of its tenant that go before it."""
    usage: quota_usage.QuotaUsage | None
    """Quotas that its tenant has used, with this job; None: it has none."""


class Found(NamedTuple):
    """Answer to a `Put` whose job was there already."""

    job: Job
    is_new: bool
    """True if it is the job of this very call, whose first answer was lost."""


class OverQuota(NamedTuple):
    """Quota that refused a `Put`, and the tenant's usage."""

    quota: str
    standing: quota_usage.QuotaUsage
    oldest: str | None
    """Id of its oldest queued job."""


Refusal = Literal["full", "conflict", "refused"]


@dataclass(frozen=True)
class Deposit(Silent):
    """Note that files of this job are about to be stored."""

    id: str


@dataclass(frozen=True)
class Put(Script[Queued | Found | OverQuota | Refusal]):
    """Accept a job."""

    id: str
    model: str
    tenant: str
    priority: int
    priority_s: float
    """Wait that a level of priority may impose on others."""
    deadline_at: float | None
    run_s: float | None
    """Seconds it takes alone."""
    max_queued: int
    """Jobs of the model, over all tenants."""
    tenant_max_queued: int | None
    device_seconds_per_hour: float | None
    stored_bytes: int | None
    cost: float
    """Device-seconds."""
    input_bytes: int
    """Bytes of it that are stored already."""
    kept: int | None
    """Steps that its drafts have done; None: it has none."""
    draft_bytes: int
    """Bytes of its drafts, which leave when it ends."""
    made: Delivered | None
    """Sums of its files, which are there already; None: it has to be drawn."""
    retention_s: float
    idempotency: str | None
    """Name of the client's key."""
    digest: str
    """Digest of the request's body."""
    idempotency_ms: int
    refused: bool
    """Refuse it if it is new."""
    webhook: bool
    """Announce its end."""
    fields: Sequence[str] = field(metadata=TEXT)
    """Name, value, … of its hash."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> Queued | Found | OverQuota | Refusal:
        """Return what became of the job, or why it was not stored."""
        match answer:
            case ["new", created_at, rank, *taken]:
                usage = quota_usage.QuotaUsage.parse(taken[0]) if taken else None
                return Queued(float(created_at), rank, usage)
            case [("again" | "old") as outcome, job]:
                return Found(serialization.from_hash(serialization.parse(job)), outcome == "again")
            case ["quota", quota, taken, *oldest]:
                return OverQuota(quota, quota_usage.QuotaUsage.parse(taken), *(oldest or [None]))
            case [("full" | "conflict" | "refused") as refusal]:
                return refusal
        raise ValueError(f"put.lua answered {answer!r}")


@dataclass(frozen=True)
class ReadQuota(Script[quota_usage.QuotaUsage]):
    """Sum up what a tenant has taken of its quotas."""

    tenant: str
    device_seconds_per_hour: float | None
    retention_s: float

    @staticmethod
    def parse(answer: Sequence[str | int]) -> quota_usage.QuotaUsage:
        """Return the tenant's usage."""
        return quota_usage.QuotaUsage.parse(answer)


@dataclass(frozen=True)
class Get(Script[Job | None]):
    """Read a job; None: there is none."""

    id: str

    @staticmethod
    def parse(answer: str | None) -> Job | None:
        """Return the job; None: there is none."""
        return serialization.from_hash(serialization.parse(answer)) if answer else None


class JobList(list[Job]):
    """Page of a tenant's jobs, newest first.

    Args:
        next: id of the job after which to go on; None: there are no more.
    """

    def __init__(self, jobs: Iterable[Job], next: str | None) -> None:
        super().__init__(jobs)
        self.next = next


@dataclass(frozen=True)
class List(Script[JobList | None]):
    """Read a page of a tenant's jobs, newest first; None: it has no job `after`."""

    tenant: str
    states: Sequence[JobState]
    after: str | None
    """Id of the job after which to go on."""
    limit: int
    looked_at: int
    """Jobs that are held against the next three, at most."""
    model: str | None
    metadata_key: str | None
    metadata_value: str | None
    created_from: int | None
    """Microseconds since the epoch."""
    created_before: int | None

    @staticmethod
    def parse(answer: Sequence[str] | None) -> JobList | None:
        """Return the page; None: the cursor is unknown."""
        if answer is None:
            return None
        after, *found = answer
        jobs = (serialization.from_hash(serialization.parse(text)) for text in found)
        return JobList(jobs, after or None)


@dataclass(frozen=True)
class ReadQueue(Script[QueueSnapshot]):
    """Read what waits of a model, and what runs."""

    model: str
    looked_at: int
    """Running jobs, and urgent ones, at most."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> QueueSnapshot:
        """Return the snapshot of the queue."""
        return QueueSnapshot.parse(answer)


@dataclass(frozen=True)
class SwitchModel(Script[bool]):
    """Let another model serve a queued job."""

    id: str
    model: str
    """Model in whose queue it waits."""
    to: str
    """Model in whose queue it is to wait."""
    served_by: str
    """Name of that one, or of the variant of it."""
    fingerprint: str

    @staticmethod
    def parse(answer: int) -> bool:
        """Return whether it waits there now."""
        return bool(answer)


class Stopping(Script[Hash | None]):
    """Base of scripts that stop a job: they give it as it is then; None: there is none."""

    @staticmethod
    def parse(answer: str | None) -> Hash | None:
        """Return the job's hash as it was; None: there is none to stop."""
        return None if answer is None else serialization.parse(answer)


@dataclass(frozen=True)
class Cancel(Stopping):
    """Cancel a job; one that has ended stays as it is."""

    call: str
    id: str


@dataclass(frozen=True)
class Delete(Stopping):
    """Cancel a job if it has not ended, and forget it."""

    call: str
    id: str
    answer_ms: int


@dataclass(frozen=True)
class ReadModels(Script[dict[str, ModelStatus]]):
    """Read every pool's announcement, by model."""

    @staticmethod
    def parse(answer: Sequence[Sequence[str]]) -> dict[str, ModelStatus]:
        """Return the models by name, in their order; without those that cannot be read."""
        found = [status for row in answer if (status := _status(*row))]
        return {status.spec.name: status for status in sorted(found, key=lambda s: s.spec.name)}


@dataclass(frozen=True)
class Depths(Script[dict[str, Depth]]):
    """Read how much is to be done, by registered model."""

    looked_at: int
    """Jobs with something kept, at most."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> dict[str, Depth]:
        """Return the depths by model."""
        return {
            model: Depth(queued, running, float(oldest_s), float(backlog_s))
            for model, queued, running, oldest_s, backlog_s in answer
        }


@dataclass(frozen=True)
class ReadCosts(Script[CostTable]):
    """Read what pools have measured of a model."""

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
    """Parse what a pool has told of itself."""
    facts = json.loads(text)  # by a script, which has no empty lists
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
    """Read what a pool announced; None: only a newer version can."""
    try:
        return ModelSpec.model_validate_json(text)
    except ValidationError as error:
        log.warning("a pool announced a model that this front end cannot read: %s", error)
        return None
