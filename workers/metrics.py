"""What a pool tells Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram

from service.jobs.job import Job, Usage
from workers.step_times import Way

STEP_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

steps = Counter("atelier_steps_total", "Denoising steps of pictures.", ["model"])
step_seconds = Histogram(
    "atelier_step_seconds",
    "One batch's step; parts: of the slice, side by side (1: all of it on each picture).",
    ["model", "batch", "parts"], buckets=STEP_BUCKETS_S,
)  # fmt: skip
padding = Counter("atelier_padding_rows_total", "Rows computed to fill up a batch.", ["model"])
device_busy = Counter(
    "atelier_device_step_seconds_total", "Time that the device spent on steps.", ["model"]
)
device_wait = Counter(
    "atelier_device_wait_seconds_total",
    "Time that the device waited for the host with a step to do (an upper bound).", ["model"],
)  # fmt: skip
swaps = Counter(
    "atelier_expert_swaps_total", "Networks brought to the device in place of another.", ["model"]
)
swap_seconds = Counter(
    "atelier_expert_swap_seconds_total", "Time that the device waited for them.", ["model"]
)
slots = Gauge("atelier_slots", "Pictures that can be denoised together.", ["model"])
slots_busy = Gauge("atelier_slots_busy", "Pictures that are being denoised.", ["model"])
compile_seconds = Histogram(
    "atelier_compile_seconds", "Compiling one program, or reading it from the cache.", ["program"],
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300),
)  # fmt: skip
snapshots = Counter("atelier_snapshots_total", "Snapshots of unfinished pictures.", ["model"])
snapshot_seconds = Counter(
    "atelier_snapshot_seconds_total", "Time from the copy to the queue's answer.", ["model"]
)
resumed = Counter("atelier_resumed_total", "Pictures that went on from a snapshot.", ["model"])
preemptions = Counter(
    "atelier_preemptions_total", "Running jobs that were put aside for others.", ["model"]
)
claims = Counter("atelier_claims_total", "Jobs claimed from the queue.", ["model"])
jobs = Counter("atelier_pool_jobs_total", "Jobs that left this pool.", ["model", "outcome"])
cost_ratio = Histogram(
    "atelier_job_cost_ratio", "Device-seconds that a job took, over those that were predicted.",
    ["model"], buckets=(0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10),
)  # fmt: skip
ready = Gauge("atelier_pool_ready", "1 after the warm-up.", ["model"])


@contextmanager
def compiling(program: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    compile_seconds.labels(program).observe(time.perf_counter() - started)


def step(model: str, rows: int, way: Way, seconds: float) -> None:
    """One batch of `rows` pictures, padded to the way's size, took the slice this long."""
    steps.labels(model).inc(rows)
    step_seconds.labels(model, str(way.size), str(way.parts)).observe(seconds)
    padding.labels(model).inc(way.size - rows)
    device_busy.labels(model).inc(seconds)


def cost(job: Job, usage: Usage) -> None:
    """A job is done; one that was put before anything was measured tells nothing."""
    if job.run_s is not None:
        cost_ratio.labels(job.model).observe(usage.device_seconds / job.cost)


def swap(model: str, seconds: float) -> None:
    """One network came to the device, in this time."""
    swaps.labels(model).inc()
    swap_seconds.labels(model).inc(seconds)


def snapshot(model: str, seconds: float) -> None:
    """One try, beside the steps, took this long."""
    snapshots.labels(model).inc()
    snapshot_seconds.labels(model).inc(seconds)
