"""Health of an alias's versions: whether one does worse than the baseline, by its newest jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import get_args

from service.jobs.model.alias import Alias
from service.jobs.model.job import CLIENTS_FAULT, ErrorCode

NOT_OURS = CLIENTS_FAULT | {"safety_unavailable"}
"""Failures that say nothing of the version."""
OURS = frozenset(get_args(ErrorCode)) - NOT_OURS


@dataclass(frozen=True)
class Sample:
    """Job of an alias. Those that were canceled are none."""

    version: str
    took_s: float
    """Seconds from its acceptance to its end, or to now where it has not ended."""
    has_ended: bool
    failure: str | None = None
    """Reason, where it has failed."""

    @property
    def has_failed(self) -> bool:
        """Return whether it failed for a reason that may lie with its version."""
        return self.failure in OURS


def complaint(alias: Alias, version: str, samples: Iterable[Sample]) -> str | None:
    """Return why a version should step back to the baseline; None: it should not.

    Its share of failed jobs, of those that have ended, exceeds the baseline's by more than
    `max_failures`; or its median latency is more than `max_slowdown` times the baseline's. A job
    that has not ended counts with the time since it was accepted, which it takes at least.
    """
    samples = list(samples)
    mine = [one for one in samples if one.version == version]
    others = [one for one in samples if one.version == alias.baseline]
    return _failures(alias, mine, others) or _latency(alias, mine, others)


def _failures(alias: Alias, mine: Sequence[Sample], others: Sequence[Sample]) -> str | None:
    ended, failed = _ends(mine)
    if ended < alias.min_jobs:
        return None
    base_ended, base_failed = _ends(others)
    if failed / ended <= base_failed / max(1, base_ended) + alias.max_failures:
        return None
    return f"{failed} of {ended} jobs failed, and {base_failed} of {base_ended} of the baseline's"


def _ends(samples: Sequence[Sample]) -> tuple[int, int]:
    """Return how many have ended, and failed."""
    ended = [one for one in samples if one.has_ended]
    return len(ended), sum(one.has_failed for one in ended)


def _latency(alias: Alias, mine: Sequence[Sample], others: Sequence[Sample]) -> str | None:
    if min(len(mine), len(others)) < alias.min_jobs:
        return None
    took_s, base_s = (median(one.took_s for one in some) for some in (mine, others))
    if took_s <= base_s * alias.max_slowdown:
        return None
    return f"half of {len(mine)} jobs took {took_s:.1f} s or more, the baseline's {base_s:.1f} s"
