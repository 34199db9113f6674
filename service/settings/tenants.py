"""`[tenants.NAME]`: shares and quotas."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import Field

from service.settings.section import Section

OTHERS = "*"
"""Name of whoever is not named."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names that a tenant may have: they become parts of Redis keys and settings."""


class TenantSettings(Section):
    """Limits of a tenant. Left out of a tenant's section: no limit."""

    weight: float = Field(1, gt=0, allow_inf_nan=False)
    """Share of the workers, against those of other tenants with queued jobs."""
    max_queued: int | None = Field(None, gt=0)
    """Maximum number of queued jobs, over all models."""
    max_compiling: int | None = Field(None, gt=0)
    """Maximum number of jobs that wait for compilation or are being compiled, over all workers;
    further ones stay queued. `pools.NAME.max_compiling` is the bound of one worker."""
    max_loras: int = Field(100, ge=0)
    """Maximum number of uploaded adapters."""
    metrics_class: str = Field("default", pattern=r"^[a-z0-9_-]{1,32}$")
    """Label of the tenant in metrics, shared with all tenants of that class."""
    stored_bytes: int | None = Field(None, gt=0)
    """Maximum bytes in the store: of input images and outputs, until their jobs are deleted or
    `queue.retention_s` is over, of batches' files and results, and of uploaded adapters. What is
    sent is accepted while it fits; outputs of a job that was accepted may go beyond."""
    device_seconds_per_hour: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Maximum device-seconds of jobs that ended in the last hour and, as predicted, of those that
    have not ended. A job is accepted while anything is left, so the last one may go beyond."""


def classes_of(tenants: Iterable[TenantSettings]) -> list[str]:
    """Return the metrics classes of these tenants, and of those that are nowhere named."""
    return sorted({one.metrics_class for one in (*tenants, TenantSettings())})


def check_tenant(name: str) -> None:
    """Check a tenant's name.

    Raises: ValueError: a tenant can't be called so.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} can't be a tenant: take up to 64 letters, digits, dots, dashes"
            " and underscores, a letter or digit first"
        )
