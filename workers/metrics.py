"""Prometheus metrics of the devices: steps, stages, compilation, memory.

Metrics of jobs are in workers/pool/metrics.py.

Label values are bounded: one model, a limited number of buckets and layouts, content types, and
outcomes that this code defines. Series with known labels are exported from the start, with 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, Counter, Gauge

from service.jobs.model.histogram import Histogram
from service.tracing.library_warnings import library_warnings

STEP_BUCKETS_S = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.35, 0.5, 1, 2, 3.5, 5, 10, 20, 40, 80,
)  # fmt: skip
"""Histogram buckets, from a small image on a fast chip to a large video on a slow one."""
STAGE_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1200, 2400,
)  # fmt: skip
COMPILE_BUCKETS_S = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)

STAGES = ("encode", "denoise", "decode", "upscale", "media", "store")
PROGRAMS = ("encode", "step", "decode", "preview")
CACHE_RESULTS = ("hit", "miss")
EXECUTABLE_RESULTS = ("hit", "miss", "refused", "unkept", "fetched", "unfetched")
OTHER = "other"
"""Label value for all values beyond those listed."""
MEMORY_KINDS = {"in_use": "bytes_in_use", "peak": "peak_bytes_in_use", "limit": "bytes_limit"}
"""Kinds of device memory, and the JAX runtime's names for them."""

REGISTRY.register(library_warnings)

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
adapter_loads = Counter(
    "atelier_adapter_loads_total", "Adapters loaded into a pool's banks.", ["model"]
)
adapter_load_seconds = Counter(
    "atelier_adapter_load_seconds_total",
    "Seconds spent loading adapters, while steps continue.",
    ["model"],
)
prompt_encodings = Counter(
    "atelier_prompt_encodings_total",
    "Lookups in the cache of encoded prompts, by result.",
    ["model", "result"],
)
adapter_pages = Gauge(
    "atelier_adapter_pages",
    "Pages of a pool's banks, where it has some: free, or used by an adapter.",
    ["model", "state"],
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
    "(compiled but not storable); of those built elsewhere: fetched, unfetched (in the manifest "
    "but missing, damaged or out of reach).",
    ["result"],
)
executable_seconds = Counter(
    "atelier_executable_read_seconds_total", "Seconds spent reading executables (hits)."
)
worker_info = Gauge(
    "atelier_worker_info",
    "Always 1; the labels describe the worker: its slice, machine, version and checkpoint.",
    ["model", "chip", "chips", "layout", "spot", "region", "version", "checkpoint"],
)
worker_chips = Gauge(
    "atelier_worker_chips",
    "Chips of this worker's slice; several models of one slice share them evenly.",
    ["model", "chip", "spot"],
)
startup_seconds = Gauge(
    "atelier_startup_seconds",
    "Seconds that this worker's start took, by phase.",
    ["model", "phase"],
)

OF_A_MODEL = (
    compile_busy, padding, device_busy, device_wait, flops, slots, slots_busy, swaps, swap_seconds,
    adapter_loads, adapter_load_seconds,
)  # fmt: skip


def expect(model: str) -> None:
    """Initialize the device metrics of this worker's model with 0, to export them at once."""
    for family in OF_A_MODEL:
        family.labels(model)
    for result in CACHE_RESULTS:
        prompt_encodings.labels(model, result)
    for stage in STAGES:
        stages.labels(model, stage)
    for program in PROGRAMS:
        compile_seconds.labels(program)
    for result in CACHE_RESULTS:
        compile_cache.labels(result)
    for result in EXECUTABLE_RESULTS:
        executables.labels(result)


def read_executable(seconds: float) -> None:
    """Count a program that was loaded from its executable file, and its time."""
    executables.labels("hit").inc()
    executable_seconds.inc(seconds)


@contextmanager
def compiling(program: str) -> Iterator[None]:
    """Time the compiling or loading of one program."""
    started = time.perf_counter()
    yield
    compile_seconds.labels(program).observe(time.perf_counter() - started)


@contextmanager
def building(model: str) -> Iterator[None]:
    """Time the tracing and compiling of one program that was in no cache."""
    started = time.perf_counter()
    try:
        yield
    finally:
        compile_busy.labels(model).inc(time.perf_counter() - started)


def swap(model: str, seconds: float) -> None:
    """Count one network loaded onto the device, and its time."""
    swaps.labels(model).inc()
    swap_seconds.labels(model).inc(seconds)


def adapter_loaded(model: str, seconds: float) -> None:
    """Count one adapter loaded onto the device, and its time."""
    adapter_loads.labels(model).inc()
    adapter_load_seconds.labels(model).inc(seconds)


def adapter_pages_are(model: str, used: int, free: int) -> None:
    """Set the numbers of used and free pages of an engine's adapter banks."""
    for state, pages in (("used", used), ("free", free)):
        adapter_pages.labels(model, state).set(pages)


def profiled(model: str, communication: float) -> None:
    """Record the result of a profile. Args: communication: share of a step's time, from 0 to 1."""
    communication_ratio.labels(model).set(communication)


def started(models: Iterable[str], phase: str, since: float) -> float:
    """Record the end of a start phase of these models; return the time, as `time.time`.

    Args:
        phase: import (interpreter and imports), wait (for Redis and other hosts of the slice), load
            (weights), open (adapters and upscalers), warm_up (programs) or measure (trial runs).
    """
    now = time.time()
    for model in models:
        startup_seconds.labels(model, phase).set(max(0.0, now - since))
    return now


def process_began() -> float:
    """Return the start time of this process; the current time if the system does not report it."""
    return REGISTRY.get_sample_value("process_start_time_seconds") or time.time()
