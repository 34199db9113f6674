"""`[queue]`: leases, retention and order of jobs."""

from __future__ import annotations

from pydantic import Field

from service.settings.section import Section


class QueueSettings(Section):
    max_queued: int = Field(10_000, gt=0)
    """Of one model; more are refused with 429, but of tenants that have less than an even share of
    these places: nobody keeps the others out."""
    lease_s: float = Field(15, gt=0)
    """A pool that does not renew for this long loses its jobs."""
    reap_every_s: float = Field(2, gt=0)
    max_attempts: int = Field(3, gt=0)
    """Claims after which a job that its pools give up, or die with, fails for good."""
    max_deaths: int = Field(2, gt=0)
    """Pools that may die with a job, without its getting any further, until it is set aside; no
    more than `max_attempts`."""
    retention_s: float = Field(24 * 3600, gt=0)
    """How long an ended job, its events and its outputs are kept."""
    model_retention_s: float = Field(7 * 24 * 3600, gt=0)
    """How long a model is listed, and takes requests, without any pool; its jobs keep it."""
    idempotency_s: float = Field(24 * 3600, gt=0)
    deposit_s: float = Field(600, gt=0)
    """How long the pictures of a request wait in the store for it to be accepted: longer than that
    takes. Those of a front end that died in between are deleted then."""
    max_events: int = Field(256, gt=0)
    """Of one job; older ones are dropped from its stream."""
    priority_s: float = Field(600, ge=0)
    """How long a level of priority lets others of the same tenant wait at the most."""
    priority_advance_s: float = Field(30, ge=0)
    """By how many device-seconds a level of priority brings a tenant ahead of others."""
    deadline_credit_s: float = Field(300, ge=0)
    """By how many device-seconds deadlines may bring a tenant ahead of its share."""
    affinity_s: float = Field(2, ge=0)
    """How long a job waits for a pool that has compiled its shape while others could take it."""
