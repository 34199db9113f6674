"""Choice of a tenant's jobs, for lists of them."""

from __future__ import annotations

from dataclasses import dataclass

from service.jobs.model.job import JobState


@dataclass(frozen=True)
class JobFilter:
    """Jobs that fit everything that is given."""

    state: JobState | None = None
    model: str | None = None
    """Name of the model in the request."""
    metadata_key: str | None = None
    """Name that their metadata has."""
    metadata_value: str | None = None
    """Text that it has there; None: any."""
    created_from_us: int | None = None
    """Microseconds since the epoch of the first moment."""
    created_before_us: int | None = None
    """Microseconds since the epoch of the first moment after the last."""
