"""Consistency check of Redis: reads every key in one script call, and recomputes the keys that
follow from the jobs' hashes."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from service.jobs.model.job import Job, JobState
from service.jobs.redis import keys

DUMP = """
local read = {
  string = function(name) return redis.call('GET', name) end,
  hash = function(name) return redis.call('HGETALL', name) end,
  set = function(name) return redis.call('SMEMBERS', name) end,
  list = function(name) return redis.call('LRANGE', name, 0, -1) end,
  zset = function(name) return redis.call('ZRANGE', name, 0, -1, 'WITHSCORES') end,
  stream = function(name) return redis.call('XRANGE', name, '-', '+') end,
}
local found, time = {}, redis.call('TIME')
for i, name in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', name).ok
  found[i] = {name, kind, redis.call('PTTL', name), read[kind](name)}
end
return cjson.encode({time, found})
"""
ROW = re.compile(r"^\| `([\w:]+)` +\| (\w+) +\|", re.M)
SCHEMA = dict(ROW.findall(keys.__doc__ or ""))
"""Redis type by key pattern, from the table in `keys.py`."""
BRIEF = {
    "call",
    "used",
    "idempotency",
    "pools",
    "layouts",
    "tried",
    "left",
    "loralock",
    "ledgerlease",
}
"""Kinds of keys that expire by a TTL."""
OWN_FIELDS = {
    "place", "accepted", "events", "fence", "kept", "settled", "told", "shown", "promised",
    "queued_at", "latest_start", "idempotency", "room", "yields", "ended_by", "webhook", "stored",
    "spent", "first_fence", "origin", "resumes", "billed", "served_as", "draft_bytes",
}  # fmt: skip
"""Fields of a job's hash that scripts use, in addition to the job's fields."""


@dataclass(frozen=True)
class Dump:
    now: float
    """Redis's clock, in seconds."""
    keys: Mapping[str, Any]
    """Values by name without prefix: str, dict (hash; zset, with scores), set, list of (id,
    fields)."""

    def of_kind(self, kind: str) -> dict[str, Any]:
        return {name: held for name, held in self.keys.items() if kind_of(name) == kind}

    @property
    def jobs(self) -> dict[str, dict[str, str]]:
        return {held["id"]: held for held in self.of_kind("job").values()}


async def dump(redis: Redis) -> Dump:
    """Read all keys. Assert that the schema names each key, with its type, and that the right keys
    have a TTL."""
    (seconds, micros), rows = json.loads(await redis.eval(DUMP, 0))
    contents = {}
    for full, kind, ttl_ms, value in rows:
        assert full.startswith(keys.PREFIX), full
        name = full.removeprefix(keys.PREFIX)
        assert kind in kinds_of(name), f"{name} is a {kind}"
        assert (ttl_ms >= 0) == (kind_of(name) in BRIEF), f"{name} leaves in {ttl_ms} ms"
        contents[name] = READ[kind](value)
    return Dump(int(seconds) + int(micros) / 1e6, contents)


def kind_of(name: str) -> str:
    return name.partition(":")[0]


def kinds_of(name: str) -> set[str]:
    """Redis types of keys with that name, by the schema."""
    word, *rest = name.split(":")
    return {
        kind
        for pattern, kind in SCHEMA.items()
        if pattern.split(":")[0] == word and (":" in pattern) == bool(rest)
    }


def _pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


READ = {
    "string": str,
    "hash": lambda flat: dict(_pairs(flat)),
    "set": set,
    "list": list,
    "zset": lambda flat: {member: float(score) for member, score in _pairs(flat)},
    "stream": lambda entries: [(entry, dict(_pairs(flat))) for entry, flat in entries],
}


def derived(jobs: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Compute every key that follows from the jobs' hashes alone."""
    index: defaultdict[str, dict[str, float]] = defaultdict(dict)
    sums: defaultdict[str, float] = defaultdict(float)
    for name, job in jobs.items():
        model, tenant, state = job["model"], job["tenant"], JobState(job["state"])
        index["jobs"][name] = index[f"jobs:{state}:{tenant}"][name] = float(job["accepted"])
        sums[f"stored:{tenant}"] += int(job.get("stored", 0))
        if state.ended:
            index["ended"][name] = float(job["finished_at"])
            if "drafts_expire_at" in job and "snapshots" in job:
                index["drafts"][name] = float(job["drafts_expire_at"])
            continue
        sums[f"promised:{tenant}"] += int(job.get("promised", 0))
        if "deadline_at" in job:
            index["deadlines"][name] = float(job["deadline_at"])
        if state is JobState.QUEUED:
            of_model = f"{len(model)}:{model}"
            lane = f"lane:{of_model}:{len(job['bucket'])}:{job['bucket']}:{tenant}"
            index[f"queue:{of_model}:{tenant}"][name] = index[lane][name] = float(job["place"])
            index[f"waiting:{model}"][name] = float(job["queued_at"])
            if "latest_start" in job:
                index[f"latest:{model}"][name] = float(job["latest_start"])
            backlog = index[f"backlog:{model}"]
            backlog[tenant] = backlog.get(tenant, 0) + float(job["cost"])
            index[f"weights:{model}"][tenant] = float(job["weight"])
            sums[f"queued:{model}"] += 1
    return {**index, **{name: n for name, n in sums.items() if n}}


DERIVED = (
    "jobs", "ended", "promised", "deadlines", "queue", "lane", "latest", "backlog", "weights",
    "queued", "waiting", "stored", "drafts",
)  # fmt: skip


def lines(jobs: Mapping[str, Mapping[str, str]]) -> dict[str, set[str]]:
    """Tenants with queued jobs, by the key of their bucket's line."""
    tenants: defaultdict[str, set[str]] = defaultdict(set)
    for job in jobs.values():
        if job["state"] == JobState.QUEUED:
            model = job["model"]
            tenants[f"line:{len(model)}:{model}:{job['bucket']}"].add(job["tenant"])
    return dict(tenants)


def check_derived(dump: Dump) -> None:
    """Assert that Redis's sets, sums and lines are exactly those of the jobs."""
    jobs = dump.jobs
    expected = derived(jobs)
    held = {name: _numbers(dump.keys[name]) for name in dump.keys if kind_of(name) in DERIVED}
    assert held == expected
    assert {name: set(held) for name, held in dump.of_kind("line").items()} == lines(jobs)
    waited_for = {name.partition(":")[2] for name in dump.of_kind("queued")}
    assert {name.partition(":")[2] for name in dump.of_kind("busy")} == waited_for
    running = {name for name, job in jobs.items() if job["state"] == JobState.RUNNING}
    assert set(dump.keys.get("leases", ())) == running
    for job in jobs.values():
        assert job.keys() <= Job.model_fields.keys() | OWN_FIELDS, job.keys()


def _numbers(held: Any) -> Any:
    if isinstance(held, dict):
        return {member: float(value) for member, value in held.items()}
    return float(held)
