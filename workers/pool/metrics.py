"""Prometheus metrics of jobs: claims, outcomes, snapshots, costs.

Device metrics are in workers/metrics.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import REGISTRY, Counter, Gauge

from service.jobs.model.histogram import Histogram
from service.jobs.model.job import Job, Output, Usage
from service.jobs.model.metrics import JobMetrics, ReuseMetrics, SafetyMetrics
from workers import metrics

RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)
JOB_OUTCOMES = ("succeeded", "paused", "failed", "queued", "lost", "dropped")
MEASURED, NOT_COMPILED, FAILED, DROPPED = "measured", "not_compiled", "failed", "dropped"
RECEIPT_OUTCOMES = (MEASURED, NOT_COMPILED, FAILED, DROPPED)
PSNR_BUCKETS_DB = (10, 15, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 45, 50, 60, 80)
"""Finest in the range that presets aim for."""
CONTENT_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "video/mp4", "video/webm")

job_metrics = JobMetrics(REGISTRY)
"""Metrics of jobs that this worker's calls end, start or requeue."""
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
    "atelier_pool_jobs_total",
    "Jobs that this pool ended or released, by outcome.",
    ["model", "outcome"],
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
quality_psnr = Histogram(
    "atelier_quality_psnr_db",
    "PSNR of a preset: of a served image or video against the exact one, generated again while"
    " the devices were idle; 99 where they are equal.",
    ["model", "preset"],
    buckets=PSNR_BUCKETS_DB,
)
receipts = Counter(
    "atelier_receipts_total",
    "Served images and videos kept for an exact second run, by outcome: measured; not_compiled"
    " (the worker has no programs of the exact one); failed; dropped (for newer ones, or begun"
    " three times).",
    ["model", "outcome"],
)

model_swaps = Counter(
    "atelier_model_swaps_total",
    "Models loaded onto the devices, in place of another one or after a sleep.",
    ["model"],
)
model_swap_seconds = Counter(
    "atelier_model_swap_seconds_total",
    "Seconds from the end of the last step to the arrival of a model's weights.",
    ["model"],
)
on_devices = Gauge(
    "atelier_model_on_devices",
    "1 while a model's weights are on the devices, else 0: another one's are, or the pool sleeps.",
    ["model"],
)

reuse = ReuseMetrics(REGISTRY)
"""Metrics of jobs that received the files of an equal job."""

OF_A_MODEL = (
    snapshots, snapshot_failures, snapshot_seconds, resumed, preemptions, claims, cost_ratio, ready,
    model_swaps, model_swap_seconds,
)  # fmt: skip


def expect(model: str, tenant_classes: Iterable[str], objective_s: float) -> None:
    """Initialize the metrics of this worker's model with 0, so that they are exported at once.

    Args:
        objective_s: target waiting time of the model's jobs.
    """
    metrics.expect(model)
    job_metrics.expect([model], tenant_classes)
    job_metrics.objectives[model] = objective_s
    for family in OF_A_MODEL:
        family.labels(model)
    reuse.expect(model)
    for outcome in JOB_OUTCOMES:
        jobs.labels(model, outcome)
    for content_type in CONTENT_TYPES:
        output_bytes.labels(model, content_type)


def expect_receipts(model: str, presets: Iterable[str]) -> None:
    """Initialize the metrics of the model's presets with 0."""
    for preset in presets:
        quality_psnr.labels(model, preset)
    for outcome in RECEIPT_OUTCOMES:
        receipts.labels(model, outcome)


def finished(job: Job, outputs: Iterable[Output], usage: Usage) -> None:
    """Record a finished job; the cost ratio only if its cost was predicted at submission.

    Args:
        job: record of the job as claimed.
        usage: usage of its last claim.
    """
    for output in outputs:
        kind = output.content_type if output.content_type in CONTENT_TYPES else metrics.OTHER
        output_bytes.labels(job.model, kind).inc(output.bytes)
    if job.run_s is not None and usage.steps:  # not for copied outputs
        device_s = usage.device_seconds + job.usage.device_seconds
        cost_ratio.labels(job.model).observe(device_s / job.own_cost)


def snapshot(model: str, seconds: float) -> None:
    """Count one attempt to take a snapshot, and its time."""
    snapshots.labels(model).inc()
    snapshot_seconds.labels(model).inc(seconds)


def swapped(model: str, seconds: float) -> None:
    """Count one model loaded onto the devices, and its time."""
    on_devices.labels(model).set(1)
    model_swaps.labels(model).inc()
    model_swap_seconds.labels(model).inc(seconds)
