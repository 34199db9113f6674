"""Histograms with two kinds of buckets: classic ones, and native (exponential) ones beside them.

Text pages and pushes have the classic ones, as the Prometheus client makes them; pages in protobuf
have both (`service/metrics/protobuf.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import prometheus_client
from prometheus_client import Metric

from service.jobs.model.native_buckets import NativeBuckets


class NativeFamily(Metric):
    """Family of a histogram, with the native buckets of its series by their labels' values."""

    natives: Mapping[tuple[str, ...], NativeBuckets]


class Histogram(prometheus_client.Histogram):
    """Histogram as the Prometheus client has it, which counts into native buckets, too."""

    def __init__(
        self, name: str, documentation: str, labelnames: Iterable[str] = (), **options: Any
    ) -> None:
        self._native = NativeBuckets()
        super().__init__(name, documentation, labelnames, **options)

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count an observation.

        Native buckets first: as they are read last, they never have less than the classic ones.
        """
        self._native.observe(amount)
        super().observe(amount, exemplar)

    def collect(self) -> list[Metric]:
        """Return the one family, with both kinds of buckets."""
        (classic,) = super().collect()
        family = NativeFamily(classic.name, classic.documentation, classic.type, classic.unit)
        family.samples = classic.samples
        family.natives = {labels: one._native for labels, one in self._series()}
        return [family]

    def _series(self) -> list[tuple[Any, Any]]:
        """Return those that observe, with the values of their labels."""
        if not self._labelnames:
            return [((), self)]
        with self._lock:
            return [*self._metrics.items()]
