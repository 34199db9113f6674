"""Metrics of the safety hook, for front ends and workers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from service.jobs.model.histogram import Histogram
from service.tracing import spans

CHECK_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
VERDICTS = ("allowed", "refused", "absent")


class SafetyMetrics:
    """Safety metrics of one process.

    Args:
        registry: registry that exports them.
        when: which of the two safety checks this process makes.
    """

    def __init__(self, registry: CollectorRegistry, when: str) -> None:
        self.checks = Counter(
            "atelier_safety_checks_total",
            "Checks by the safety hook, by verdict.",
            ("when", "verdict"),
            registry=registry,
        )
        self.seconds = Histogram(
            "atelier_safety_check_seconds",
            "Seconds from a request to the safety hook to its verdict, including retries.",
            ("when",),
            buckets=CHECK_BUCKETS_S,
            registry=registry,
        )
        self.seconds.labels(when)
        for verdict in VERDICTS:
            self.checks.labels(when, verdict)

    def record(self, when: str, verdict: str, seconds: float) -> None:
        """Count one safety check with its verdict and duration."""
        self.checks.labels(when, verdict).inc()
        exemplar = spans.exemplar_of(spans.current_traceparent())
        self.seconds.labels(when).observe(seconds, exemplar)
