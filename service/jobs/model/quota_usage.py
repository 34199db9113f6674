"""Quota usage of a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class QuotaUsage:
    """Usage of its quotas by a tenant."""

    queued: int
    device_seconds: float
    """Used within the last hour, or promised to jobs that have not ended."""
    next_s: float
    """Seconds until some of them stop to count; where nothing is left, until something is."""
    stored_bytes: int = 0
    """Stored bytes of inputs and outputs, while their jobs are kept."""
    leaves_s: float = 0.0
    """Seconds until the retention time of some of them is over."""

    @classmethod
    def parse(cls, answer: Sequence[str | int]) -> QuotaUsage:
        """Parse a script's answer."""
        queued, device_seconds, next_s, stored, leaves_s = answer
        return cls(int(queued), float(device_seconds), float(next_s), int(stored), float(leaves_s))
