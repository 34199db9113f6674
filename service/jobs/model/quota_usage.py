"""Usage of a tenant's quotas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class QuotaUsage:
    """Usage of a tenant's quotas: queued jobs, device-seconds, stored bytes."""

    queued: int
    device_seconds: float
    """Device-seconds used within the last hour, or predicted for unended jobs."""
    next_s: float
    """Seconds until some of these no longer count; if the quota is used up, until some are
    available."""
    stored_bytes: int = 0
    """Bytes of stored inputs, outputs and other files of the tenant."""
    leaves_s: float = 0.0
    """Approximate seconds until the retention of some of them ends."""

    @classmethod
    def parse(cls, answer: Sequence[str | int]) -> QuotaUsage:
        """Parse the answer of `read_quota.lua` or `put.lua`."""
        queued, device_seconds, next_s, stored, leaves_s = answer
        return cls(int(queued), float(device_seconds), float(next_s), int(stored), float(leaves_s))
