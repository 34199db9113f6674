"""What is done to a system, and when: a seed gives a plan of acts, which is data.

A plan says when an act is due. When it can be done depends on the machine: a pool that is to drain
has to be there first. So a seed repeats the plan, not every interleaving.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from random import Random

LEASE_S = 3.0
"""Of the system under test: short, so that a run sees many of them lapse."""
POOLS = ("pool-0", "pool-1", "pool-2", "pool-3")
FRONTS = ("front-0", "front-1")
REDIS, STORE = "redis", "store"


class Kind(StrEnum):
    KILL = "kill"
    """SIGKILL; whoever died is started anew, Redis after a while."""
    FREEZE = "freeze"
    """SIGSTOP, and SIGCONT after a while: beyond the lease."""
    DRAIN = "drain"
    """SIGTERM: it has to leave in time, with exit code 0."""
    BREAK = "break"
    """The store's folder is no folder for a while."""


@dataclass(frozen=True)
class Act:
    at_s: float
    """Since the beginning."""
    kind: Kind
    target: str
    lasts_s: float = 0.0
    """Frozen, away or broken for so long."""

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:6.1f} s  {self.kind} {self.target}{lasts}"


@dataclass(frozen=True)
class Sort:
    """Acts of one sort: what is done to one of these, for how long."""

    kind: Kind
    targets: tuple[str, ...]
    lasts_s: tuple[float, float] = (0.0, 0.0)


BEYOND_LEASE = (1.3 * LEASE_S, 2 * LEASE_S)
SORTS = (
    # Twice each, since it is these that snapshots are for.
    *2 * (Sort(Kind.KILL, POOLS), Sort(Kind.FREEZE, POOLS, BEYOND_LEASE)),
    Sort(Kind.DRAIN, POOLS),
    Sort(Kind.KILL, FRONTS),
    Sort(Kind.DRAIN, FRONTS),
    Sort(Kind.KILL, (REDIS,), (0.5, 2 * LEASE_S)),
    Sort(Kind.FREEZE, (REDIS,), BEYOND_LEASE),
    Sort(Kind.BREAK, (STORE,), (1.0, 2 * LEASE_S)),
)


TOGETHER_S = 0.5
"""Between the two acts of a pair: the second meets a system that the first has just hurt."""


def make(seed: int, span_s: float, count: int, spared: Collection[str] = ()) -> tuple[Act, ...]:
    """So many acts within that time, in pairs, by time: each sort comes up before any comes up
    again.

    Args:
        spared: targets to which nothing is done.
    """
    random = Random(seed)
    possible = [sort for sort in SORTS if not set(sort.targets) & set(spared)]
    sorts: list[Sort] = []
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
    """Pairs, evenly spread."""
    every_s = 2 * span_s / count
    found: list[float] = []
    for pair in range((count + 1) // 2):
        first = pair * every_s + random.random() * (every_s - min(TOGETHER_S, every_s / 2))
        found += [round(first, 3), round(first + random.random() * min(TOGETHER_S, every_s / 2), 3)]
    return found[:count]
