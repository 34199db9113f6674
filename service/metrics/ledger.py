"""Counters of the usage ledger: sums over ended jobs, stored in Redis.

Redis scripts update the sums together with the ledger's records, so the sums outlive processes. All
front ends export the same values: take their maximum, not their sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.jobs.ledger_files import Totals
from service.jobs.model.ledger import HOUSE, LOST, TENANT
from service.jobs.model.state_machine import ENDED, JobState

BY_CLASS = ("model", "tenant_class")
MICRO = 1_000_000


@dataclass(frozen=True)
class Sum:
    """Kind of ledger sum, and the metric that exports it."""

    name: str
    meaning: str
    labels: tuple[str, ...] = BY_CLASS
    unit: int = 1
    expected: tuple[tuple[str, ...], ...] = ((),)
    """Label values, in addition to model and class, that are exported as 0 in advance."""


SUMS: Mapping[str, Sum] = {
    "jobs": Sum(
        "atelier_ledger_jobs_total",
        "Jobs ended, according to the ledger.",
        (*BY_CLASS, "outcome"),
        expected=tuple((state.value,) for state in sorted(ENDED)),
    ),
    "images": Sum("atelier_images_total", "Images delivered by succeeded jobs."),
    "videos": Sum("atelier_videos_total", "Videos delivered by succeeded jobs."),
    "frames": Sum("atelier_frames_total", "Frames of videos delivered by succeeded jobs."),
    "pixels": Sum("atelier_pixels_total", "Pixels of delivered images and frames."),
    "device_seconds": Sum(
        "atelier_job_device_seconds_total",
        "Device-seconds of ended jobs, by outcome and payer.",
        (*BY_CLASS, "outcome", "payer"),
        MICRO,
        (
            (JobState.SUCCEEDED, TENANT),
            (JobState.PAUSED, TENANT),
            (JobState.CANCELED, TENANT),
            (JobState.FAILED, TENANT),
            (JobState.FAILED, HOUSE),
            (JobState.EXPIRED, HOUSE),
            (LOST, HOUSE),
        ),
    ),
}


STORED_SUMS = frozenset(sum_.name for sum_ in SUMS.values())
"""Counters that start with the system, not with the exporting process."""


class LedgerMetrics(Collector):
    """Ledger metrics, from the last read of Redis.

    Args:
        registry: registry that exports them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._totals: Totals | None = None
        self._expected: list[tuple[str, ...]] = []
        registry.register(self)

    def update(self, totals: Totals, models: Iterable[str], classes: Collection[str]) -> None:
        """Export the ledger's sums, and 0 for models and classes without any."""
        self._totals = totals
        self._expected = list(itertools.product(models, classes))

    def clear(self) -> None:
        """Export no ledger values, because Redis is unavailable."""
        self._totals = None

    def describe(self) -> Iterator[Metric]:
        """Yield the ledger's metric families without samples."""
        return self._families()

    def collect(self) -> Iterator[Metric]:
        """Yield the ledger's metric families, with samples if Redis was reachable."""
        totals = self._totals
        for (kind, sum_), family in zip(SUMS.items(), self._counters(), strict=True):
            for labels, value in self._samples(kind, sum_, totals):
                family.add_metric(labels, value / sum_.unit)
            yield family
        pending, oldest = self._gauges()
        if totals:
            pending.add_metric((), totals.pending)
            oldest.add_metric((), totals.oldest_s)
        yield pending
        yield oldest

    def _samples(
        self, kind: str, sum_: Sum, totals: Totals | None
    ) -> Iterable[tuple[tuple[str, ...], int]]:
        if totals is None:
            return ()
        samples = {(*named, *further): 0 for named in self._expected for further in sum_.expected}
        samples |= {name[1:]: value for name, value in totals.sums.items() if name[0] == kind}
        return samples.items()

    def _families(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._gauges()

    def _counters(self) -> Iterator[CounterMetricFamily]:
        for sum_ in SUMS.values():
            yield CounterMetricFamily(sum_.name, sum_.meaning, labels=sum_.labels)

    def _gauges(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "atelier_ledger_pending_records",
                "Records of the ledger that are not in the store yet.",
                labels=(),
            ),
            GaugeMetricFamily(
                "atelier_ledger_pending_seconds",
                "Age of the oldest of these in seconds; 0 if there is none.",
                labels=(),
            ),
        )
