"""`[queue]`: leases, retention and order of jobs."""

from __future__ import annotations

from pydantic import Field

from service.settings.section import Section


class QueueSettings(Section):
    """The queue and its rules."""

    max_queued: int = Field(10_000, gt=0)
    """Maximum number of queued jobs of one model. Beyond it requests get a 429, except those of
    tenants below an even share of these places."""
    lease_s: float = Field(15, gt=0)
    """Lease of a claimed job. A worker that does not renew it in this time loses the job."""
    reap_every_s: float = Field(2, gt=0)
    """Interval at which lapsed leases, deadlines and retention are looked after."""
    max_attempts: int = Field(3, gt=0)
    """Claims after which a job that its workers give up, or die with, fails."""
    max_deaths: int = Field(2, gt=0)
    """Workers that may die with a job, without progress in between, before it fails; at most
    `max_attempts`."""
    retention_s: float = Field(24 * 3600, gt=0)
    """Time that an ended job, its events and its outputs are kept."""
    model_retention_s: float = Field(7 * 24 * 3600, gt=0)
    """Time that a model without workers stays listed and accepts requests; queued jobs keep it
    longer."""
    idempotency_s: float = Field(24 * 3600, gt=0)
    """Time that an Idempotency-Key stands for its job."""
    reuse: bool = False
    """Answer to a request that was drawn before, for the same tenant by the same weights: true:
    copies of those files, while they are kept; or, where its worker is drawing that just now, of
    what it becomes. A request may refuse that with `reuse`; where `safety.after` has pixels
    checked, all are drawn."""
    deposit_s: float = Field(600, gt=0)
    """Time that input images wait in the store for their request to be accepted; longer than
    accepting takes. Those of a front end that died in between are deleted then."""
    max_events: int = Field(256, gt=0)
    """Maximum number of events kept per job; older ones are dropped from its stream."""
    priority_s: float = Field(600, ge=0)
    """Longest time that one level of priority makes other jobs of the same tenant wait."""
    priority_advance_s: float = Field(30, ge=0)
    """Device-seconds by which one level of priority brings a tenant ahead of others."""
    deadline_credit_s: float = Field(300, ge=0)
    """Device-seconds, for each worker of the model, by which deadlines may bring a tenant ahead of
    its share."""
    wait_replicas: int = Field(0, ge=0)
    """Number of Redis' replicas that must have a job, file, batch or adapter before it is accepted.
    0: acceptance does not wait for them, and a failover may lose what they had not received."""
    wait_replicas_s: float = Field(2, gt=0, le=4)
    """Time that acceptance waits for `wait_replicas`; after it the request gets a 503."""
    affinity_s: float = Field(2, ge=0)
    """Time that a job waits for a worker that has compiled its bucket while others could take
    it."""
