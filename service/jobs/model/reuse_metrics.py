"""Metrics of jobs that get copies of earlier files instead of generating their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class ReuseMetrics:
    """Reuse metrics of one process.

    Args:
        registry: registry that exports them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Counter(
            "atelier_jobs_reused_total",
            "Jobs that received copies of another job's files: from a front end if that job had"
            " ended, else from a worker.",
            ("model",),
            registry=registry,
        )
        self._device_s = Counter(
            "atelier_reused_device_seconds_total",
            "Device-seconds that generating those files took.",
            ("model",),
            registry=registry,
        )

    def expect(self, model: str) -> None:
        """Create a model's series with value 0, before its first job."""
        self._jobs.labels(model)
        self._device_s.labels(model)

    def saved(self, model: str, device_seconds: float) -> None:
        """Count a job that got copies, and the device-seconds that the files had taken."""
        self._jobs.labels(model).inc()
        self._device_s.labels(model).inc(device_seconds)
