"""`[queue]`: leases, retention and order of jobs."""

from __future__ import annotations

from pydantic import Field

from service.settings.section import Section


class QueueSettings(Section):
    """Limits, leases, retention and scheduling of the job queue."""

    max_queued: int = Field(10_000, gt=0)
    """Maximum number of queued jobs of one model. Above it requests get a 429, except from tenants
    with fewer jobs than an equal share of this limit."""
    lease_s: float = Field(15, gt=0)
    """Lease of a claimed job. A worker that does not renew it in time loses the job."""
    reap_every_s: float = Field(2, gt=0)
    """Interval at which lapsed leases, deadlines and retention are processed."""
    max_attempts: int = Field(3, gt=0)
    """Number of claims after which a job fails whose workers give up or crash."""
    max_deaths: int = Field(2, gt=0)
    """Number of worker crashes, without progress in between, after which a job fails; at most
    `max_attempts`."""
    retention_s: float = Field(24 * 3600, gt=0)
    """Time that an ended job, its events and its outputs are kept."""
    model_retention_s: float = Field(7 * 24 * 3600, gt=0)
    """Time that a model without workers stays listed and accepts requests. Queued jobs extend
    it."""
    idempotency_s: float = Field(24 * 3600, gt=0)
    """Time that an Idempotency-Key refers to its job."""
    reuse: bool = False
    """Whether a request that repeats an earlier request of the same tenant, with the same weights,
    is answered with copies of the stored files. If that job is still running, its result is used. A
    request may opt out with `reuse`. Ignored if `safety.after` checks pixels."""
    deposit_s: float = Field(600, gt=0)
    """Time that the store keeps input images of requests not yet accepted; longer than acceptance
    takes. Inputs from front ends that crashed are then deleted."""
    max_events: int = Field(256, gt=0)
    """Maximum number of events kept per job; older ones are dropped from its stream."""
    priority_s: float = Field(600, ge=0)
    """Longest time that one level of priority makes other jobs of the same tenant wait."""
    priority_advance_s: float = Field(30, ge=0)
    """Device-seconds by which one level of priority advances a tenant in fair sharing."""
    deadline_credit_s: float = Field(300, ge=0)
    """Maximum device-seconds, per worker of the model, by which deadlines may advance a tenant
    beyond its share."""
    wait_replicas: int = Field(0, ge=0)
    """Number of Redis replicas that must acknowledge a job, file, batch or adapter before it is
    accepted. 0: acceptance does not wait, and a failover may lose unreplicated writes."""
    wait_replicas_s: float = Field(2, gt=0, le=4)
    """Timeout of acceptance for `wait_replicas`; then the request gets a 503."""
    affinity_s: float = Field(2, ge=0)
    """Time that a job waits for a worker that has compiled its bucket while other workers have
    capacity."""
