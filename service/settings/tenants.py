"""`[tenants.NAME]`: shares and quotas."""

from __future__ import annotations

from pydantic import Field

from service.settings.section import Section


class TenantSettings(Section):
    """What a tenant may have. Left out of a tenant's section: no limit."""

    weight: float = Field(1, gt=0, allow_inf_nan=False)
    """Its share of the pools, against those of others that wait."""
    max_queued: int | None = Field(None, gt=0)
    """Jobs that wait at the same time, of all models together."""
    max_compiling: int | None = Field(None, gt=0)
    """Jobs whose programs have to be compiled, at the same time and in all pools together; its
    others of that kind wait. What one pool compiles at a time is `pools.NAME.max_compiling`."""
    metrics_class: str = Field("default", pattern=r"^[a-z0-9_-]{1,32}$")
    """What metrics call it, together with all others of that class: they name no tenant."""
    stored_bytes: int | None = Field(None, gt=0)
    """Of pictures sent and made, until their jobs are deleted or `queue.retention_s` is over. A
    job is taken while anything is left and its own pictures fit; what it makes may go beyond it."""
    device_seconds_per_hour: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Of jobs that ended within the last hour and of those that have not ended, as predicted; a
    job is taken while anything is left, so that the last one may go beyond it."""
