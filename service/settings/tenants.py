"""`[tenants.NAME]`: shares and quotas."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import Field

from service.settings.section import Section

OTHERS = "*"
"""Section for all tenants without a section of their own."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names that a tenant may have. They become parts of Redis keys and settings."""


class TenantSettings(Section):
    """Limits of a tenant. A limit that is not set does not apply."""

    weight: float = Field(1, gt=0, allow_inf_nan=False)
    """Weight in fair sharing of workers with other tenants that have queued jobs."""
    max_queued: int | None = Field(None, gt=0)
    """Maximum number of queued jobs, over all models."""
    max_compiling: int | None = Field(None, gt=0)
    """Maximum number of jobs that wait for compilation or are being compiled, over all workers;
    more stay queued. `pools.NAME.max_compiling` is the limit per worker."""
    max_loras: int = Field(100, ge=0)
    """Maximum number of uploaded adapters."""
    metrics_class: str = Field("default", pattern=r"^[a-z0-9_-]{1,32}$")
    """Label of the tenant in metrics, shared by all tenants of that class."""
    stored_bytes: int | None = Field(None, gt=0)
    """Maximum bytes in the store: input images and outputs (until their jobs are deleted or
    `queue.retention_s` is over), batch files and results, and uploaded adapters. Uploads are
    accepted while they fit; outputs of accepted jobs may exceed it."""
    device_seconds_per_hour: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Maximum device-seconds of jobs that ended in the last hour, plus the predicted device-seconds
    of unfinished jobs. A job is accepted while any budget is left, so the last job may exceed
    it."""


def classes_of(tenants: Iterable[TenantSettings]) -> list[str]:
    """List the metrics classes of these tenants and of tenants without settings."""
    return sorted({tenant.metrics_class for tenant in (*tenants, TenantSettings())})


def check_tenant(name: str) -> None:
    """Check that a tenant's name is allowed.

    Raises: ValueError: not a valid tenant name.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid tenant name: use up to 64 letters, digits, dots, dashes and"
            " underscores, starting with a letter or digit"
        )
