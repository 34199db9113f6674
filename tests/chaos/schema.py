"""The names of Redis keys, as the table in `service/jobs/redis/keys.py` has them."""

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
"""What has nothing to do with single jobs."""
DRAWN = "drawn:TENANT:DIGEST"
"""Row of the front ends' own part that jobs have to do with."""
EXPIRE = {
    DRAWN: QueueSettings().retention_s + 1,
    "call:CALL": 60.0,
    "ledgerlease": 60.0,
    "used:TENANT": 3660.0,
    "left:ID": 3600.0,
    "profile:POOL": 3600.0,
    "profiled:ID": 600.0,
}
"""What is told of jobs that are gone leaves by itself, in so many seconds at the most."""


def schema() -> dict[str, re.Pattern[str]]:
    """What the keys of each row look like, by its name."""
    rows = [row["name"] for row in ROW.finditer(keys.__doc__ or "")]
    own = {name: re.compile(re.escape(keys.PREFIX) + _pattern(name)) for name in rows}
    return {**own, DRAWN: re.compile(re.escape(keys.FRONT_PREFIX) + _pattern(DRAWN))}


def _pattern(name: str) -> str:
    return ":".join(r"\d+" if part == "N" else _part(part) for part in name.split(":"))


def _part(part: str) -> str:
    return ".+" if part.isupper() else re.escape(part)


SCHEMA = schema()


def rows_of(key: str) -> set[str]:
    """Those that a key may belong to: none of them, if nobody has written down what it is."""
    return {name for name, pattern in SCHEMA.items() if pattern.fullmatch(key)}


def may_stay(key: str, ttl_s: float) -> bool:
    """Whether it may be there when no job is.

    Args:
        ttl_s: until it leaves; negative: it stays.
    """
    rows = rows_of(key)
    return any(row in OUTLIVE_JOBS or 0 <= ttl_s <= EXPIRE.get(row, -1) for row in rows)
