"""What a pool tells Prometheus: the families, and how the simple ones are fed.

Label values are few: one model, shapes and layouts up to a number, content types and outcomes of
our own code. All that can be told before anything has happened is told, with 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from service.jobs.model.job import Job, Output, Usage
from service.jobs.model.metrics import Tally

STEP_BUCKETS_S = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.35, 0.5, 1, 2, 3.5, 5, 10, 20, 40, 80,
)  # fmt: skip
"""From a small picture on a fast chip to a clip in high resolution on a slow one."""
STAGE_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1200, 2400,
)  # fmt: skip
COMPILE_BUCKETS_S = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)

STAGES = ("encode", "denoise", "decode", "media", "store")
PROGRAMS = ("encode", "step", "decode", "preview")
CACHE_RESULTS = ("hit", "miss")
EXECUTABLE_RESULTS = ("hit", "miss", "refused", "unkept")
JOB_OUTCOMES = ("succeeded", "failed", "queued", "lost", "dropped")
CONTENT_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "video/mp4", "video/webm")
OTHER = "other"
"""What a label says beyond the values that it may have."""
MEMORY_KINDS = {"in_use": "bytes_in_use", "peak": "peak_bytes_in_use", "limit": "bytes_limit"}
"""Of a device's memory, and what its runtime calls them."""

tally = Tally(REGISTRY)
"""Of the jobs that end, start and go back by this pool's calls."""

stages = Histogram(
    "atelier_job_stage_seconds",
    "Seconds an image or video spends in a stage, waiting included.",
    ["model", "stage"],
    buckets=STAGE_BUCKETS_S,
)
steps = Counter(
    "atelier_steps_total",
    "Denoising steps executed, warm-up included.",
    ["model", "shape", "layout"],
)
step_seconds = Histogram(
    "atelier_step_seconds",
    "Latency of a batch's denoising step, by compiled batch size and layout.",
    ["model", "shape", "layout", "batch"],
    buckets=STEP_BUCKETS_S,
)
padding = Counter(
    "atelier_padding_rows_total", "Padding rows computed to fill a step's batch.", ["model"]
)
device_busy = Counter(
    "atelier_device_step_seconds_total", "Seconds the slice spent on denoising steps.", ["model"]
)
device_wait = Counter(
    "atelier_device_wait_seconds_total",
    "Seconds the slice waited for the host while a step was due (an upper bound).",
    ["model"],
)
flops = Counter(
    "atelier_flops_total",
    "Floating-point operations of denoising steps, as the planner counts them.",
    ["model"],
)
peak_flops = Gauge(
    "atelier_peak_flops",
    "Rated bfloat16 operations per second of the slice; absent for unknown chips.",
    ["model"],
)
communication_ratio = Gauge(
    "atelier_communication_ratio",
    "Share of step time spent in collectives, by the latest profile; absent before one.",
    ["model"],
)
slots = Gauge("atelier_slots", "Slots: images or videos that can be denoised at once.", ["model"])
slots_busy = Gauge("atelier_slots_busy", "Slots in use.", ["model"])
device_memory = Gauge(
    "atelier_device_memory_bytes",
    "Memory of a device as its runtime reports it; absent on CPUs.",
    ["device", "kind"],
)
swaps = Counter(
    "atelier_expert_swaps_total", "Experts loaded onto the device in place of another.", ["model"]
)
swap_seconds = Counter(
    "atelier_expert_swap_seconds_total", "Seconds the slice waited for expert swaps.", ["model"]
)
compile_seconds = Histogram(
    "atelier_compile_seconds",
    "Seconds to compile one program, or to read it from the compile cache.",
    ["program"],
    buckets=COMPILE_BUCKETS_S,
)
compile_busy = Counter(
    "atelier_compiling_seconds_total",
    "Seconds compile threads spent on programs that were in no cache.",
    ["model"],
)
compile_cache = Counter(
    "atelier_compile_cache_total",
    "Lookups in JAX's compile cache, by result.",
    ["result"],
)
executables = Counter(
    "atelier_executables_total",
    "Lookups of AOT-compiled executables: hit, miss, refused (present but unusable), unkept "
    "(compiled but not storable).",
    ["result"],
)
executable_seconds = Counter(
    "atelier_executable_read_seconds_total", "Seconds spent reading executables (hits)."
)
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
    compile_busy, padding, device_busy, device_wait, flops, slots, slots_busy, swaps, swap_seconds,
    snapshots, snapshot_failures, snapshot_seconds, resumed, preemptions, claims, cost_ratio, ready,
)  # fmt: skip


def expect(model: str, tenant_classes: Iterable[str]) -> None:
    """This pool's model: what is counted of it is told from now on, with 0."""
    tally.expect([model], tenant_classes)
    for family in OF_A_MODEL:
        family.labels(model)
    for family, values in (
        (stages, STAGES), (jobs, JOB_OUTCOMES), (output_bytes, CONTENT_TYPES),
    ):  # fmt: skip
        for value in values:
            family.labels(model, value)
    for program in PROGRAMS:
        compile_seconds.labels(program)
    for result in CACHE_RESULTS:
        compile_cache.labels(result)
    for result in EXECUTABLE_RESULTS:
        executables.labels(result)


def read_executable(seconds: float) -> None:
    """A program came from its own file."""
    executables.labels("hit").inc()
    executable_seconds.inc(seconds)


@contextmanager
def compiling(program: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    compile_seconds.labels(program).observe(time.perf_counter() - started)


@contextmanager
def building(model: str) -> Iterator[None]:
    """A program is traced and compiled inside."""
    started = time.perf_counter()
    try:
        yield
    finally:
        compile_busy.labels(model).inc(time.perf_counter() - started)


def finished(job: Job, outputs: Iterable[Output], usage: Usage) -> None:
    """A job is done; one that was put before anything was measured tells nothing of its cost.

    Args:
        job: as it was claimed.
        usage: of its last claim.
    """
    for output in outputs:
        kind = output.content_type if output.content_type in CONTENT_TYPES else OTHER
        output_bytes.labels(job.model, kind).inc(output.bytes)
    if job.run_s is not None:
        device_s = usage.device_seconds + job.usage.device_seconds
        cost_ratio.labels(job.model).observe(device_s / job.cost)


def swap(model: str, seconds: float) -> None:
    """One network came to the device, in this time."""
    swaps.labels(model).inc()
    swap_seconds.labels(model).inc(seconds)


def snapshot(model: str, seconds: float) -> None:
    """One try, beside the steps, took this long."""
    snapshots.labels(model).inc()
    snapshot_seconds.labels(model).inc(seconds)


def profiled(model: str, communication: float) -> None:
    """A profile was taken. Args: communication: share of a step's time, from 0 to 1."""
    communication_ratio.labels(model).set(communication)
