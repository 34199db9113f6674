"""Models that workers serve: their registration, measured costs, and queues."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from models.spec.model_spec import ModelSpec
from service.jobs.redis import keys
from service.jobs.scheduling.cost_model import MAX_COSTS, CostKey, CostRow, CostTable, PoolFacts
from service.jobs.scheduling.queue_snapshot import QueueSnapshot
from service.jobs.scripts.client import QueueClient
from service.jobs.scripts.script import TEXT, Script, ScriptWithoutAnswer

log = logging.getLogger(__name__)

SCAN_LIMIT = 256
"""Maximum number of running jobs, and of jobs with deadlines, read in one queue snapshot."""


@dataclass(frozen=True)
class Register(ScriptWithoutAnswer):
    """Script call that registers a worker, or renews its heartbeat."""

    pool: str
    model: str
    ready: bool
    fresh_s: float
    """Lifetime of the heartbeat."""
    facts: PoolFacts | None
    spec: str = field(metadata=TEXT)
    """Spec of the model, as JSON."""


@dataclass(frozen=True)
class Unregister(ScriptWithoutAnswer):
    """Script call that removes a worker's registration."""

    pool: str
    model: str


@dataclass(frozen=True)
class Measured(ScriptWithoutAnswer):
    """Script call that stores costs that a worker has measured."""

    model: str
    rows: Sequence[tuple[str, Mapping[str, float | None]]]
    """Rows to store: key in the table, and fields."""
    max_rows: int
    """Maximum number of rows; the oldest are removed."""


@dataclass(frozen=True)
class ModelStatus:
    """Registered model with its workers and their readiness."""

    spec: ModelSpec
    pools: tuple[str, ...]
    """Names of the workers with a fresh heartbeat."""
    ready: bool
    """Whether at least one of them has finished its warm-up."""


@dataclass(frozen=True)
class ReadModels(Script[dict[str, ModelStatus]]):
    """Script call that reads the registered models and their workers."""

    @staticmethod
    def parse(answer: Sequence[Sequence[str]]) -> dict[str, ModelStatus]:
        """Return the models sorted by name, without those that cannot be parsed."""
        statuses = [status for row in answer if (status := _status(*row))]
        return {status.spec.name: status for status in sorted(statuses, key=lambda s: s.spec.name)}


@dataclass(frozen=True)
class Depth:
    """Length, age and predicted cost of one model's queue."""

    queued: int
    running: int
    oldest_s: float
    """Seconds since the oldest queued job was queued; 0: none is queued."""
    backlog_s: float
    """Predicted device-seconds of queued jobs and of the rest of running ones."""


@dataclass(frozen=True)
class Depths(Script[dict[str, Depth]]):
    """Script call that reads the queue's depth by registered model."""

    looked_at: int
    """Maximum number of jobs with snapshots that are read."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> dict[str, Depth]:
        """Return the queues' depths by model."""
        return {
            model: Depth(queued, running, float(oldest_s), float(backlog_s))
            for model, queued, running, oldest_s, backlog_s in answer
        }


@dataclass(frozen=True)
class ReadQueue(Script[QueueSnapshot]):
    """Script call that reads a model's queued and running jobs."""

    model: str
    looked_at: int
    """Maximum number of running jobs, and of jobs with deadlines."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> QueueSnapshot:
        """Return the snapshot of the model's queue."""
        return QueueSnapshot.parse(answer)


@dataclass(frozen=True)
class ReadCosts(Script[CostTable]):
    """Script call that reads the measured costs of a model."""

    model: str

    @staticmethod
    def parse(answer: Sequence[Any]) -> CostTable:
        """Return the table of the model's measured costs."""
        rows, pools, now = answer
        return CostTable(
            {CostKey.parse(name): _cost_row(text) for name, text in _pairs(rows)},
            {name: pool_facts(text) for name, text in _pairs(pools)},
            float(now),
        )


class RegisteredModels(QueueClient):
    """Part of a `Queue` with which workers announce models, and front ends read about them."""

    async def register(
        self, pool: str, spec: ModelSpec, *, ready: bool, facts: PoolFacts | None = None
    ) -> None:
        """Register a worker and its model, and renew its heartbeat. Call it every `lease_s` / 3."""
        await self.run(
            Register(
                pool=pool,
                model=spec.name,
                ready=ready,
                fresh_s=self._settings.lease_s,
                facts=facts,
                spec=spec.model_dump_json(),
            )
        )

    async def unregister(self, pool: str, model: str) -> None:
        """Remove a worker's registration for its model."""
        await self.run(Unregister(pool, model))

    async def models(self) -> dict[str, ModelStatus]:
        """Return the status of every registered model by name."""
        return await self.run(ReadModels())

    async def depths(self) -> dict[str, Depth]:
        """Return the queue's depth by registered model."""
        return await self.run(Depths(SCAN_LIMIT))

    async def queue_snapshot(self, model: str) -> QueueSnapshot:
        """Read a model's queued and running jobs, for estimates of waits."""
        return await self.run(ReadQueue(model, SCAN_LIMIT))

    async def measured(self, model: str, rows: Mapping[CostKey, CostRow]) -> None:
        """Store measured costs; rows with the same keys are replaced."""
        measured_rows = [(key.wire(), row.model_dump(exclude={"at"})) for key, row in rows.items()]
        await self.run(Measured(model, measured_rows, MAX_COSTS))

    async def costs(self, model: str) -> CostTable:
        """Read the costs that a model's workers have measured."""
        return await self.run(ReadCosts(model))

    async def acquire_cost_trial(self, model: str, bucket: str, every_s: float) -> bool:
        """Acquire the right to re-measure a cost, which one caller gets every `every_s` seconds."""
        name = keys.cost_trial(model, bucket)
        return bool(await self._redis.set(name, "", nx=True, px=round(every_s * 1000)))


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
