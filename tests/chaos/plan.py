"""Plans of a chaos run: a seed determines the actions and their times, as data.

An act may happen later than planned, because a pool has to be running before it can drain. So a
seed repeats the plan, but not every interleaving.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from random import Random

LEASE_S = 3.0
"""Lease of the system under test; short, so that many leases expire in a run."""
POOLS = ("pool-0", "pool-1", "pool-2", "pool-3")
FRONTS = ("front-0", "front-1")
REDIS, STORE = "redis", "store"


class Kind(StrEnum):
    KILL = "kill"
    """SIGKILL; the process is restarted, Redis after a delay."""
    FREEZE = "freeze"
    """SIGSTOP, then SIGCONT after longer than the lease."""
    DRAIN = "drain"
    """SIGTERM; the process must exit in time with code 0."""
    BREAK = "break"
    """A file replaces the store's folder for a while."""


@dataclass(frozen=True)
class Act:
    at_s: float
    """Seconds since the start."""
    kind: Kind
    target: str
    lasts_s: float = 0.0
    """Duration in seconds of a freeze, an absence or a break."""

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:6.1f} s  {self.kind} {self.target}{lasts}"


@dataclass(frozen=True)
class ActKind:
    """A kind of action with its possible targets and durations."""

    kind: Kind
    targets: tuple[str, ...]
    lasts_s: tuple[float, float] = (0.0, 0.0)


BEYOND_LEASE = (1.3 * LEASE_S, 2 * LEASE_S)
ACT_KINDS = (
    # Twice each, because snapshots exist for these failures.
    *2 * (ActKind(Kind.KILL, POOLS), ActKind(Kind.FREEZE, POOLS, BEYOND_LEASE)),
    ActKind(Kind.DRAIN, POOLS),
    ActKind(Kind.KILL, FRONTS),
    ActKind(Kind.DRAIN, FRONTS),
    ActKind(Kind.KILL, (REDIS,), (0.5, 2 * LEASE_S)),
    ActKind(Kind.FREEZE, (REDIS,), BEYOND_LEASE),
    ActKind(Kind.BREAK, (STORE,), (1.0, 2 * LEASE_S)),
)


TOGETHER_S = 0.5
"""Maximum seconds between the actions of a pair; the second hits a system that is still
recovering."""


def make(seed: int, span_s: float, count: int, spared: Collection[str] = ()) -> tuple[Act, ...]:
    """Make actions of a time span in pairs, in order of time; each kind occurs before any repeats.

    Args:
        spared: targets that no act may have.
    """
    random = Random(seed)
    possible = [sort for sort in ACT_KINDS if not set(sort.targets) & set(spared)]
    sorts: list[ActKind] = []
    while len(sorts) < count:
        sorts += random.sample(possible, len(possible))
    moments = _moments(random, span_s, count)
    return tuple(
        Act(
            at_s=moments[number],
            kind=sort.kind,
            target=random.choice(sort.targets),
            lasts_s=round(random.uniform(*sort.lasts_s), 3),
        )
        for number, sort in enumerate(sorts[:count])
    )


def _moments(random: Random, span_s: float, count: int) -> list[float]:
    """Times of evenly spread pairs."""
    every_s = 2 * span_s / count
    times: list[float] = []
    for pair in range((count + 1) // 2):
        first = pair * every_s + random.random() * (every_s - min(TOGETHER_S, every_s / 2))
        times += [round(first, 3), round(first + random.random() * min(TOGETHER_S, every_s / 2), 3)]
    return times[:count]
