"""Prometheus histograms with classic buckets and native (exponential) buckets.

Text pages and pushes contain only the classic buckets, as the Prometheus client writes them. Pages
in protobuf contain both (`service/metrics/protobuf.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import prometheus_client
from prometheus_client import Metric

from service.jobs.model.native_buckets import NativeBuckets


class NativeFamily(Metric):
    """Metric family of a histogram, with the native buckets of each series by label values."""

    natives: Mapping[tuple[str, ...], NativeBuckets]


class Histogram(prometheus_client.Histogram):
    """Prometheus client histogram that also counts into native buckets."""

    def __init__(
        self, name: str, documentation: str, labelnames: Iterable[str] = (), **options: Any
    ) -> None:
        self._native = NativeBuckets()
        super().__init__(name, documentation, labelnames, **options)

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count an observation in classic and native buckets.

        Native buckets are updated first. They are read last, so they never contain less than the
        classic ones.
        """
        self._native.observe(amount)
        super().observe(amount, exemplar)

    def collect(self) -> list[NativeFamily]:
        """Return the histogram's metric family with classic and native buckets."""
        (classic,) = super().collect()
        family = NativeFamily(classic.name, classic.documentation, classic.type, classic.unit)
        family.samples = classic.samples
        family.natives = {labels: series._native for labels, series in self._series()}
        return [family]

    def _series(self) -> list[tuple[Any, Any]]:
        """Return the histogram's series that observe values, with their label values."""
        if not self._labelnames:
            return [((), self)]
        with self._lock:
            return [*self._metrics.items()]
