"""Counters of the ledger: what ended jobs delivered and used, as Redis has summed it up.

They count what the ledger's records say, by the same scripts, and so outlive every process. All
front ends tell them alike: take their maximum, not their sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.jobs.model.ledger import HOUSE, LOST, TENANT
from service.jobs.model.state_machine import ENDED, JobState
from service.jobs.scripts.ledger import Totals

BY_CLASS = ("model", "tenant_class")
MICRO = 1_000_000


@dataclass(frozen=True)
class Sum:
    """A kind of sum, and the metric that tells it."""

    name: str
    meaning: str
    labels: tuple[str, ...] = BY_CLASS
    unit: int = 1
    expected: tuple[tuple[str, ...], ...] = ((),)
    """Values of the labels beside model and class that are told before there is a sum."""


SUMS: Mapping[str, Sum] = {
    "jobs": Sum(
        "atelier_ledger_jobs_total",
        "Jobs ended, as the ledger has them.",
        (*BY_CLASS, "outcome"),
        expected=tuple((state.value,) for state in sorted(ENDED)),
    ),
    "images": Sum("atelier_images_total", "Images delivered by succeeded jobs."),
    "videos": Sum("atelier_videos_total", "Videos delivered by succeeded jobs."),
    "frames": Sum("atelier_frames_total", "Frames of videos delivered by succeeded jobs."),
    "pixels": Sum("atelier_pixels_total", "Pixels of delivered images and frames."),
    "device_seconds": Sum(
        "atelier_job_device_seconds_total",
        "Device-seconds of ended jobs, by what became of them and who pays.",
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


KEPT = frozenset(sum_.name for sum_ in SUMS.values())
"""Counters that begin with the system, and not with the process that tells them."""


class LedgerMetrics(Collector):
    """Metrics of the ledger as it was last looked at.

    Args:
        registry: whose page they are told on.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._totals: Totals | None = None
        self._expected: list[tuple[str, ...]] = []
        registry.register(self)

    def look(self, totals: Totals, models: Iterable[str], classes: Collection[str]) -> None:
        """Tell of these sums, with 0 for models and classes that have none yet."""
        self._totals = totals
        self._expected = list(itertools.product(models, classes))

    def away(self) -> None:
        """The queue does not answer: nothing is known of it."""
        self._totals = None

    def describe(self) -> Iterator[Metric]:
        """Yield the families without samples."""
        return self._families()

    def collect(self) -> Iterator[Metric]:
        """Yield the families, with samples if Redis was there."""
        totals = self._totals
        for (what, sum_), family in zip(SUMS.items(), self._counters(), strict=True):
            for labels, value in self._samples(what, sum_, totals):
                family.add_metric(labels, value / sum_.unit)
            yield family
        pending, oldest = self._gauges()
        if totals:
            pending.add_metric((), totals.pending)
            oldest.add_metric((), totals.oldest_s)
        yield pending
        yield oldest

    def _samples(
        self, what: str, sum_: Sum, totals: Totals | None
    ) -> Iterable[tuple[tuple[str, ...], int]]:
        if totals is None:
            return ()
        found = {(*named, *further): 0 for named in self._expected for further in sum_.expected}
        found |= {name[1:]: value for name, value in totals.sums.items() if name[0] == what}
        return found.items()

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
