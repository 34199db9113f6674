"""Metrics of what is given again in place of being drawn."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class ReuseMetrics:
    """Counts of one process.

    Args:
        registry: whose page they are on.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Counter(
            "atelier_jobs_reused_total",
            "Jobs given files that another one has drawn: by a front end those drawn before, by a"
            " worker those of an equal job that had not ended yet.",
            ("model",),
            registry=registry,
        )
        self._device_s = Counter(
            "atelier_reused_device_seconds_total",
            "Device-seconds that drawing those files took.",
            ("model",),
            registry=registry,
        )

    def expect(self, model: str) -> None:
        """Tell of a model from now on, with 0 where nothing has happened yet."""
        self._jobs.labels(model)
        self._device_s.labels(model)

    def saved(self, model: str, device_seconds: float) -> None:
        """Count a job that was given files, and what drawing them had taken."""
        self._jobs.labels(model).inc()
        self._device_s.labels(model).inc(device_seconds)
