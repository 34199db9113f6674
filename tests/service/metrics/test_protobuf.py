"""Metrics pages in protobuf: exact bytes, and the same series as the text pages."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import httpx
import prometheus_client as client
import pytest
from google.protobuf import proto
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.registry import Collector

import workers.pool.metrics  # noqa: F401 # defines the pool's metrics
from service.jobs.model.histogram import MAX_BUCKETS, ZERO_THRESHOLD, Histogram, NativeFamily
from service.metrics.exposition import PROTOBUF, page
from service.metrics.front_end import Telemetry
from service.metrics.protobuf import HISTOGRAM, MetricFamily
from tests.service.metrics.test_exposition import OPENMETRICS, generate, settings  # noqa: F401
from tests.service.standin import MODEL, StandIn

Series = tuple[str, tuple[tuple[str, str], ...]]
TRACE = {"trace_id": "a" * 32, "span_id": "b" * 16}


def read(body: bytes) -> list[Any]:
    """Parse metric families with protobuf's own parser."""
    stream, families = io.BytesIO(body), []
    while (family := proto.parse_length_prefixed(MetricFamily, stream)) is not None:
        families.append(family)
    return families


def in_protobuf(registry: CollectorRegistry) -> list[Any]:
    body, content_type = page(registry, PROTOBUF)
    assert content_type == PROTOBUF
    return read(body)


def labels_of(message: Any, **more: str) -> tuple[tuple[str, str], ...]:
    labels = {pair.name: pair.value for pair in message.label}
    return tuple(sorted((labels | more).items()))


def series(families: list[Any]) -> Iterator[tuple[Series, float]]:
    """Yield the classic series that Prometheus derives from protobuf."""
    for family in families:
        for metric in family.metric:
            if family.type != HISTOGRAM:
                (value,) = (
                    content for field, content in metric.ListFields() if field.name != "label"
                )
                yield (family.name, labels_of(metric)), value.value
                continue
            histogram = metric.histogram
            yield (f"{family.name}_count", labels_of(metric)), histogram.sample_count
            yield (f"{family.name}_sum", labels_of(metric)), histogram.sample_sum
            for bucket in histogram.bucket:
                le = labels_of(metric, le=client.utils.floatToGoString(bucket.upper_bound))
                yield (f"{family.name}_bucket", le), bucket.cumulative_count


def in_text(registry: CollectorRegistry) -> dict[Series, float]:
    body, _ = page(registry, OPENMETRICS)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in read_openmetrics(body.decode())
        for sample in family.samples
    }


def native(histogram: Any) -> dict[int, int]:
    """Counts by native bucket, decoded from spans and deltas."""
    indices, end = [], 0
    for span in histogram.positive_span:
        end += span.offset
        indices += range(end, end + span.length)
        end += span.length
    return dict(zip(indices, accumulate(histogram.positive_delta), strict=True))


def test_the_bytes() -> None:
    """Compare bytes computed by hand. Observations: 0, 1 (bucket 0 of schema 3), 1.0625 twice
    (bucket 1) and 4 (bucket 16); the classic bucket up to 2 has four."""
    registry = CollectorRegistry()
    histogram = Histogram("h", "H.", ("m",), buckets=(2,), registry=registry).labels("x")
    for value in (0, 1, 1.0625, 1.0625, 4):
        histogram.observe(value)
    fields = (
        "08 05"  # sample_count
        "11 00 00 00 00 00 80 1c 40"  # sample_sum: 7.125
        "1a 0b 08 04 11 00 00 00 00 00 00 00 40"  # bucket: 4 up to 2
        "1a 0b 08 05 11 00 00 00 00 00 00 f0 7f"  # bucket: 5 up to infinity
        "28 06"  # schema: 3, in zigzag
        "31 00 00 00 00 00 00 f0 37"  # zero_threshold: 2**-128
        "38 01"  # zero_count
        "62 04 08 00 10 02"  # positive_span: 2 buckets from 0 on
        "62 04 08 1c 10 01"  # positive_span: 14 further on, 1 bucket
        "68 02 68 02 68 01"  # positive_delta: 1, 1, -1 in zigzag
    )
    inner = bytes.fromhex(fields)
    label = bytes.fromhex("0a 06 0a 01 6d 12 01 78")  # label: m, x
    metric = label + b"\x3a" + bytes([len(inner)]) + inner  # histogram
    family = bytes.fromhex("0a 01 68 12 02 48 2e 18 04 22") + bytes([len(metric)]) + metric
    assert page(registry, PROTOBUF)[0] == bytes([len(family)]) + family


@pytest.mark.parametrize("values", [(), (-1, -1, -8), (math.inf,), (math.nan, 1)])
def test_every_observation_is_exported(values: tuple[float, ...]) -> None:
    registry = CollectorRegistry()
    histogram = Histogram("h", "H.", registry=registry)
    for value in values:
        histogram.observe(value)
    ((metric,),) = (family.metric for family in in_protobuf(registry))
    assert metric.histogram.sample_count == len(values)
    assert metric.histogram.zero_threshold == ZERO_THRESHOLD  # marks the histogram as native
    spans = [(span.offset, span.length) for span in metric.histogram.negative_span]
    assert (spans == [(0, 1), (23, 1)]) == (-8 in values)


@given(st.dictionaries(st.integers(-300, 300), st.integers(1, 10**6), max_size=MAX_BUCKETS))
def test_spans_and_deltas_are_the_buckets(counts: dict[int, int]) -> None:
    from service.metrics.protobuf import _add_buckets

    histogram = MetricFamily().metric.add().histogram
    ordered = dict(sorted(counts.items()))
    _add_buckets(histogram.positive_span, histogram.positive_delta, ordered)
    assert native(histogram) == ordered
    assert all(span.offset for span in histogram.positive_span[1:]), "adjacent buckets share a span"


class Others(Collector):
    """Custom collector with a classic histogram."""

    def collect(self) -> Iterator[client.Metric]:
        yield HistogramMetricFamily("own", "Own.", buckets=[("1.0", 1), ("+Inf", 3)], sum_value=7)


@pytest.fixture
def registry() -> CollectorRegistry:
    """Registry with every kind of metric in the client library."""
    registry = CollectorRegistry()
    client.Counter("counted_total", "C.", ("who",), registry=registry).labels('quoted "\\\n é').inc(
        3
    )
    client.Gauge("gauged", "G.", registry=registry).set(-2.5)
    client.Summary("summed", "S.", registry=registry).observe(3)
    client.Info("known", "I.", registry=registry).info({"version": "1"})
    client.Enum("state", "E.", states=["on", "off"], registry=registry)
    client.Histogram("classic", "H.", registry=registry).observe(3)
    Histogram("both", "H.", ("who",), registry=registry).labels("me").observe(0.3, TRACE)
    Histogram("empty", "H.", ("who",), registry=registry)
    registry.register(Others())
    return registry


def test_every_kind_has_the_series_of_the_text_page(registry: CollectorRegistry) -> None:
    families = in_protobuf(registry)
    assert dict(series(families)) == in_text(registry)
    assert {family.name for family in families if not family.metric} == set()
    natives = {
        family.name
        for family in families
        if family.type == HISTOGRAM and family.metric[0].histogram.zero_threshold
    }
    assert natives == {"both"}


def test_exemplars_are_those_of_the_text_page(registry: CollectorRegistry) -> None:
    (filled,) = (
        bucket
        for family in in_protobuf(registry)
        for metric in family.metric
        for bucket in metric.histogram.bucket
        if bucket.HasField("exemplar")
    )
    (exemplar,) = (
        sample.exemplar
        for family in read_openmetrics(page(registry, OPENMETRICS)[0].decode())
        for sample in family.samples
        if sample.exemplar
    )
    assert labels_of(filled.exemplar) == tuple(sorted(exemplar.labels.items()))
    assert filled.upper_bound == 0.5 and filled.exemplar.value == exemplar.value
    timestamp = filled.exemplar.timestamp
    assert timestamp.seconds + timestamp.nanos / 1e9 == pytest.approx(
        float(exemplar.timestamp), abs=1e-6
    )


@pytest.mark.parametrize("accept", [None, OPENMETRICS])
def test_text_pages_are_the_clients_own(accept: str | None) -> None:
    """Equal to the last byte: text pages contain no native buckets."""
    pages = []
    for kind in (client.Histogram, Histogram):
        registry = CollectorRegistry()
        histogram = kind("h", "H.", ("m",), unit="seconds", registry=registry)
        histogram.labels("x").observe(0.3)
        pages.append(page(registry, accept))
    assert pages[0] == pages[1]


@pytest.mark.parametrize("registry", [Telemetry().registry, REGISTRY], ids=["front end", "pool"])
def test_every_histogram_has_both_kinds(registry: CollectorRegistry) -> None:
    families = [metric for metric in registry.collect() if metric.type == "histogram"]
    assert len(families) >= 6
    assert [metric.name for metric in families if not isinstance(metric, NativeFamily)] == []


def test_removed_labels_drop_their_native_buckets() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("h", "H.", ("m",), registry=registry)
    histogram.labels("x").observe(1)
    histogram.remove("x")
    assert in_protobuf(registry) == []
    histogram.labels("x").observe(1)
    (family,) = in_protobuf(registry)
    assert native(family.metric[0].histogram) == {0: 1}


async def test_a_front_ends_page(http: httpx.AsyncClient, pool: StandIn) -> None:
    await generate(http, "c" * 32)
    answer = await http.get("/metrics", headers={"Accept": PROTOBUF})
    assert answer.headers["content-type"] == PROTOBUF and answer.headers["vary"] == "Accept"
    families: Mapping[str, Any] = {family.name: family for family in read(answer.content)}
    (metric,) = (
        metric
        for metric in families["atelier_job_duration_seconds"].metric
        if dict(labels_of(metric)) == {"model": MODEL, "outcome": "succeeded"}
    )
    assert sum(native(metric.histogram).values()) == metric.histogram.sample_count == 1
    assert [bucket.exemplar for bucket in metric.histogram.bucket if bucket.HasField("exemplar")]
    assert families["atelier_jobs_ended_total"].metric and families["atelier_queue_up"].metric
