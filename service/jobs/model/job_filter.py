"""Filter for lists of a tenant's jobs."""

from __future__ import annotations

from dataclasses import dataclass

from service.jobs.model.job import JobState


@dataclass(frozen=True)
class JobFilter:
    """Filter that matches jobs which meet all its conditions; None: no condition."""

    state: JobState | None = None
    model: str | None = None
    """Name of the model in the request."""
    metadata_key: str | None = None
    """Key that the job's metadata must have."""
    metadata_value: str | None = None
    """Value of that key; None: any."""
    created_from_us: int | None = None
    """Earliest acceptance, in microseconds since the epoch."""
    created_before_us: int | None = None
    """Exclusive upper bound of the acceptance, in microseconds since the epoch."""
