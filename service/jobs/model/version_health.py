"""Health check of an alias's versions: comparison of recent jobs with the baseline's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import get_args

from service.jobs.model.alias import Alias
from service.jobs.model.job import CLIENT_ERRORS, ErrorCode

EXTERNAL_FAILURES = CLIENT_ERRORS | {"safety_unavailable"}
"""Failure reasons that do not indicate a defect of the version."""
VERSION_FAILURES = frozenset(get_args(ErrorCode)) - EXTERNAL_FAILURES
"""Failure reasons that a defect of the version may have caused."""


@dataclass(frozen=True)
class Sample:
    """Recent job of an alias, as input of the health check. Canceled jobs are excluded."""

    version: str
    took_s: float
    """Seconds from acceptance to the end, or to now for an unended job."""
    has_ended: bool
    failure: str | None = None
    """Reason of a failed job."""

    @property
    def has_failed(self) -> bool:
        """True if the job failed for a reason that a defect of the version may have caused."""
        return self.failure in VERSION_FAILURES


def step_back_reason(alias: Alias, version: str, samples: Iterable[Sample]) -> str | None:
    """Return the reason why a version should step back to the baseline, or None.

    A version steps back if its share of failed jobs, among ended ones, exceeds the baseline's by
    more than `max_failures`. It also does if its median latency exceeds `max_slowdown` times the
    baseline's. An unended job counts with its time since acceptance, which is a lower bound.
    """
    samples = list(samples)
    mine = [sample for sample in samples if sample.version == version]
    others = [sample for sample in samples if sample.version == alias.baseline]
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
    """Return the numbers of ended and of failed jobs among the samples."""
    ended = [sample for sample in samples if sample.has_ended]
    return len(ended), sum(sample.has_failed for sample in ended)


def _latency(alias: Alias, mine: Sequence[Sample], others: Sequence[Sample]) -> str | None:
    if min(len(mine), len(others)) < alias.min_jobs:
        return None
    took_s, base_s = (median(sample.took_s for sample in some) for some in (mine, others))
    if took_s <= base_s * alias.max_slowdown:
        return None
    return f"half of {len(mine)} jobs took {took_s:.1f} s or more, the baseline's {base_s:.1f} s"
