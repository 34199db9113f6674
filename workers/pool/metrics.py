"""Metrics of jobs: claims, ends, snapshots, costs. Those of the devices are workers/metrics.py."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from service.jobs.model.job import Job, Output, Usage
from service.jobs.model.metrics import JobMetrics
from service.jobs.model.safety_metrics import SafetyMetrics
from workers import metrics

RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)
JOB_OUTCOMES = ("succeeded", "failed", "queued", "lost", "dropped")
CONTENT_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "video/mp4", "video/webm")

tally = JobMetrics(REGISTRY)
"""Metrics of the jobs that end, start and go back by this pool's calls."""
safety = SafetyMetrics(REGISTRY, "after")
snapshots = Counter(
    "atelier_snapshots_total", "Snapshots taken of unfinished images and videos.", ["model"]
)
snapshot_failures = Counter("atelier_snapshot_failures_total", "Snapshots that failed.", ["model"])
snapshot_seconds = Counter(
    "atelier_snapshot_seconds_total",
    "Seconds from a snapshot's copy to the queue's answer.",
    ["model"],
)
resumed = Counter("atelier_resumed_total", "Images and videos resumed from a snapshot.", ["model"])
preemptions = Counter("atelier_preemptions_total", "Running jobs preempted for others.", ["model"])
claims = Counter("atelier_claims_total", "Jobs claimed from the queue.", ["model"])
jobs = Counter(
    "atelier_pool_jobs_total", "Jobs that left this pool, by outcome.", ["model", "outcome"]
)
output_bytes = Counter(
    "atelier_output_bytes_total",
    "Bytes of outputs of succeeded jobs.",
    ["model", "content_type"],
)
cost_ratio = Histogram(
    "atelier_job_cost_ratio",
    "Device-seconds a job took, divided by the prediction.",
    ["model"],
    buckets=RATIO_BUCKETS,
)
ready = Gauge(
    "atelier_pool_ready", "1 once warm-up is done and while the pool takes jobs, else 0.", ["model"]
)

OF_A_MODEL = (
    snapshots, snapshot_failures, snapshot_seconds, resumed, preemptions, claims, cost_ratio, ready,
)  # fmt: skip


def expect(model: str, tenant_classes: Iterable[str]) -> None:
    """Report what is counted of this worker's model from now on, with 0."""
    metrics.expect(model)
    tally.expect([model], tenant_classes)
    for family in OF_A_MODEL:
        family.labels(model)
    for outcome in JOB_OUTCOMES:
        jobs.labels(model, outcome)
    for content_type in CONTENT_TYPES:
        output_bytes.labels(model, content_type)


def finished(job: Job, outputs: Iterable[Output], usage: Usage) -> None:
    """A job is done; one that was put before anything was measured tells nothing of its cost.

    Args:
        job: as it was claimed.
        usage: of its last claim.
    """
    for output in outputs:
        kind = output.content_type if output.content_type in CONTENT_TYPES else metrics.OTHER
        output_bytes.labels(job.model, kind).inc(output.bytes)
    if job.run_s is not None:
        device_s = usage.device_seconds + job.usage.device_seconds
        cost_ratio.labels(job.model).observe(device_s / job.cost)


def snapshot(model: str, seconds: float) -> None:
    """Count one attempt, beside the steps, and its time."""
    snapshots.labels(model).inc()
    snapshot_seconds.labels(model).inc(seconds)
