"""Metrics of aliases' versions: weights, withdrawals, and comparisons with shadow jobs."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from service.jobs.model.alias import Alias
from service.jobs.model.histogram import Histogram
from service.metrics.queue import replace

EQUAL, DIFFERENT, FAILED, SKIPPED, DROPPED = "equal", "different", "failed", "skipped", "dropped"
OUTCOMES = (EQUAL, DIFFERENT, FAILED, SKIPPED, DROPPED)
PSNR_BUCKETS_DB = (10, 15, 20, 25, 30, 35, 40, 45, 50, 60)


class VersionMetrics:
    """Counters and gauges of model versions in one front end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._weights = Gauge(
            "atelier_alias_weight",
            "Weight of a version of an alias; 0: the version is not used.",
            ("alias", "model"),
            registry=registry,
        )
        self.step_backs = Counter(
            "atelier_alias_step_backs_total",
            "Automatic changes of a version's weight to 0, reported by the front end that made"
            " them.",
            ("alias", "model"),
            registry=registry,
        )
        self.shadows = Counter(
            "atelier_shadow_jobs_total",
            "Requests selected for a shadow job, by the shadow's model and the outcome.",
            ("model", "outcome"),
            registry=registry,
        )
        self.psnr = Histogram(
            "atelier_shadow_psnr_db",
            "Lowest PSNR of a shadow job's outputs against the client's, for jobs whose pixels"
            " differ.",
            ("model",),
            buckets=PSNR_BUCKETS_DB,
            registry=registry,
        )

    def update(self, aliases: Mapping[str, Alias]) -> None:
        """Export the versions' weights, and counters as 0 before the first event."""
        weights = (
            ((name, version), weight)
            for name, alias in aliases.items()
            for version, weight in alias.weights.items()
        )
        replace(self._weights, weights)
        for name, alias in aliases.items():
            for version in alias.weights if alias.baseline else ():
                self.step_backs.labels(name, version)
            if alias.shadow:
                self.psnr.labels(alias.shadow)
                for outcome in OUTCOMES:
                    self.shadows.labels(alias.shadow, outcome)
