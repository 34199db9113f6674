"""Patterns of Redis keys from the table in `service/jobs/redis/keys.py`."""

from __future__ import annotations

import re

from service.jobs.redis import keys
from service.settings.queue import QueueSettings

ROW = re.compile(r"^\| `(?P<name>[^`]+)`\s*\|(?:[^|]*\|){2}(?P<leaves>[^|]*)\|$", re.MULTILINE)
OUTLIVE_JOBS = (
    "models",
    "seen",
    "apikeys",
    "tenantrecords",
    "tenantchanges",
    "pauses",
    "sleeps",
    "reaped",
    "history",
    "confirmed",
    "ledger",
    "ledgerfile",
    "totals",
    "pools:MODEL",
    "layouts:MODEL",
    "costs:MODEL",
)
"""Rows of keys that exist independently of jobs."""
DRAWN = "drawn:TENANT:DIGEST"
"""Row of the keys by which front ends find a job to reuse, which depends on jobs."""
EXPIRE = {
    DRAWN: QueueSettings().retention_s + 1,
    "call:CALL": 60.0,
    "ledgerlease": 60.0,
    "used:TENANT": 3660.0,
    "left:ID": 3600.0,
    "profile:POOL": 3600.0,
    "profiled:ID": 600.0,
}
"""Maximum TTL in seconds of keys about deleted jobs."""


def schema() -> dict[str, re.Pattern[str]]:
    """Patterns of keys by the row's name."""
    rows = [row["name"] for row in ROW.finditer(keys.__doc__ or "")]
    patterns = {name: re.compile(re.escape(keys.PREFIX) + _pattern(name)) for name in rows}
    return {**patterns, DRAWN: re.compile(re.escape(keys.FRONT_PREFIX) + _pattern(DRAWN))}


def _pattern(name: str) -> str:
    return ":".join(r"\d+" if part == "N" else _part(part) for part in name.split(":"))


def _part(part: str) -> str:
    return ".+" if part.isupper() else re.escape(part)


SCHEMA = schema()


def rows_of(key: str) -> set[str]:
    """Rows that a key matches; empty for an undocumented key."""
    return {name for name, pattern in SCHEMA.items() if pattern.fullmatch(key)}


def may_stay(key: str, ttl_s: float) -> bool:
    """Whether a key may exist without jobs.

    Args:
        ttl_s: seconds until it expires; negative: never.
    """
    rows = rows_of(key)
    return any(row in OUTLIVE_JOBS or 0 <= ttl_s <= EXPIRE.get(row, -1) for row in rows)
