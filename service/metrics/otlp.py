"""Conversion of a Prometheus registry to OpenTelemetry metrics, sent by OTLP over HTTP.

Imported only if metrics are pushed. Names and labels equal those of the pages, unless
OpenTelemetry's conventions define others.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

from service.jobs.model.gen_ai import NAMES
from service.metrics.ledger import STORED_SUMS
from service.settings.telemetry import MetricsSettings
from service.tracing.exporter import RateLimitFilter, resource_of
from service.tracing.spans import Attributes

TIMEOUT_S = 10.0
"""Timeout of one push, including retries."""
MAX_POINTS = 4096
"""Maximum number of points per request; more are sent in several."""
UNITS = {"_seconds": "s", "_bytes": "By"}
CUMULATIVE = AggregationTemporality.CUMULATIVE
COMPLAINTS = RateLimitFilter()
STARTED_NS = time.time_ns()
"""Start time of this process's counts."""
UNKNOWN_NS = 0
"""OTLP's unknown start time, for counters older than this process, so that restarts do not reset
them."""


class Sender:
    """Sender of a Prometheus registry's metrics by OTLP.

    Raises: ValueError: invalid OpenTelemetry variables.
    """

    def __init__(
        self,
        settings: MetricsSettings,
        registry: CollectorRegistry,
        service: str,
        attributes: Attributes,
    ) -> None:
        logging.getLogger(OTLPMetricExporter.__module__).addFilter(COMPLAINTS)
        self._registry = registry
        self._resource = resource_of(service, attributes)
        self._exporter = OTLPMetricExporter(
            endpoint=settings.address, timeout=TIMEOUT_S, max_export_batch_size=MAX_POINTS
        )

    def send(self) -> None:
        """Send the registry's current values. The exporter logs failures."""
        metrics = list(metrics_of(self._registry.collect(), time.time_ns()))
        scope = ScopeMetrics(InstrumentationScope("atelier"), metrics, "")
        self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))

    def close(self) -> None:
        """Close the connection to the metrics collector."""
        self._exporter.shutdown()


def metrics_of(families: Iterable[Family], now_ns: int) -> Iterator[Metric]:
    """Convert Prometheus metric families to OTLP metrics, omitting those without series."""
    for family in families:
        unit = next((unit for end, unit in UNITS.items() if family.name.endswith(end)), "")
        if family.type == "histogram":
            data = Histogram(list(_histograms(family.samples, now_ns)), CUMULATIVE)
            if data.data_points:
                yield Metric(_named(family.name), family.documentation, unit, data)
            continue
        by_name: dict[str, list[NumberDataPoint]] = defaultdict(list)
        for sample in family.samples:
            by_name[sample.name].append(_number(sample, now_ns))
        for name, points in by_name.items():
            is_count = family.type == "counter"
            number = Sum(points, CUMULATIVE, is_monotonic=True) if is_count else Gauge(points)
            yield Metric(_named(name), family.documentation, unit, number)


def _named(name: str) -> str:
    return NAMES.get(name, name)


def _labels(sample: Sample, *without: str) -> dict[str, str]:
    """Convert a Prometheus sample's labels to OTLP, omitting empty ones, which mean absent."""
    given = sample.labels.items()
    return {_named(name): text for name, text in given if text and name not in without}


def _number(sample: Sample, now_ns: int) -> NumberDataPoint:
    started_ns = UNKNOWN_NS if sample.name in STORED_SUMS else STARTED_NS
    return NumberDataPoint(_labels(sample), started_ns, now_ns, sample.value)


def _histograms(samples: Iterable[Sample], now_ns: int) -> Iterator[HistogramDataPoint]:
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = defaultdict(list)
    for sample in samples:
        series[tuple(_labels(sample, "le").items())].append(sample)
    for labels, group in series.items():
        buckets = [sample for sample in group if sample.name.endswith("_bucket")]
        (total,) = (sample.value for sample in group if sample.name.endswith("_sum"))
        counts = [0, *(round(sample.value) for sample in buckets)]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=STARTED_NS,
            time_unix_nano=now_ns,
            count=counts[-1],
            sum=total,
            bucket_counts=[after - before for before, after in pairwise(counts)],
            explicit_bounds=[
                bound for bucket in buckets if (bound := float(bucket.labels["le"])) < math.inf
            ],
            min=None,  # type: ignore[arg-type] # unknown, and optional in OTLP
            max=None,  # type: ignore[arg-type]
            exemplars=[exemplar for bucket in buckets if (exemplar := _exemplar(bucket))],
        )


def _exemplar(sample: Sample) -> Exemplar | None:
    given = sample.exemplar
    if given is None:
        return None
    trace, span = (int(given.labels[name], 16) for name in ("trace_id", "span_id"))
    at_ns = round(float(given.timestamp or 0) * 1e9)
    return Exemplar({}, float(given.value), at_ns, span_id=span, trace_id=trace)
