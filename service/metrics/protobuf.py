"""Rendering of metrics in protobuf, the only format in which Prometheus reads native histograms.

Imported only if a scraper requests it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Exemplar, Sample

from service.jobs.model.histogram import ZERO_THRESHOLD, BucketCounts, NativeFamily

PACKAGE = "io.prometheus.client"
COUNTER, GAUGE, UNTYPED, HISTOGRAM = 0, 1, 3, 4
"""Numbers of metric types. Prometheus declares an enum, which has the same encoding."""
VALUES = {COUNTER: "counter", GAUGE: "gauge", UNTYPED: "untyped"}
"""Fields of a metric by its type."""

MESSAGES: Mapping[str, tuple[tuple[int, str, str], ...]] = {
    "LabelPair": ((1, "name", "string"), (2, "value", "string")),
    "Gauge": ((1, "value", "double"),),
    "Counter": ((1, "value", "double"),),
    "Untyped": ((1, "value", "double"),),
    "Timestamp": ((1, "seconds", "int64"), (2, "nanos", "int32")),
    "Exemplar": (
        (1, "label", "LabelPair*"),
        (2, "value", "double"),
        (3, "timestamp", "Timestamp"),
    ),
    "Bucket": (
        (1, "cumulative_count", "uint64"),
        (2, "upper_bound", "double"),
        (3, "exemplar", "Exemplar"),
    ),
    "BucketSpan": ((1, "offset", "sint32"), (2, "length", "uint32")),
    "Histogram": (
        (1, "sample_count", "uint64"),
        (2, "sample_sum", "double"),
        (3, "bucket", "Bucket*"),
        (5, "schema", "sint32"),
        (6, "zero_threshold", "double"),
        (7, "zero_count", "uint64"),
        (9, "negative_span", "BucketSpan*"),
        (10, "negative_delta", "sint64*"),
        (12, "positive_span", "BucketSpan*"),
        (13, "positive_delta", "sint64*"),
    ),
    "Metric": (
        (1, "label", "LabelPair*"),
        (2, "gauge", "Gauge"),
        (3, "counter", "Counter"),
        (5, "untyped", "Untyped"),
        (7, "histogram", "Histogram"),
    ),
    "MetricFamily": (
        (1, "name", "string"),
        (2, "help", "string"),
        (3, "type", "int32"),
        (4, "metric", "Metric*"),
    ),
}
"""Number, name and type of the used fields of each message; `*`: repeated.

Source: prometheus/client_model, io/prometheus/client/metrics.proto.
"""


def _message_class(name: str) -> Any:
    """Build a protobuf message's class in a separate descriptor pool, to avoid conflicts."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package=PACKAGE)
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, field, kind in fields:
            declared = described.field.add(name=field, number=number)
            declared.label = (
                declared.LABEL_REPEATED if kind.endswith("*") else declared.LABEL_OPTIONAL
            )
            kind = kind.removesuffix("*")
            if kind in MESSAGES:
                declared.type, declared.type_name = declared.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                declared.type = field_type.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


MetricFamily = _message_class("MetricFamily")


def generate(registry: CollectorRegistry) -> bytes:
    """Serialize a registry's metrics as length-delimited families."""
    page = BytesIO()
    for family in registry.collect():
        for message in _histogram(family) if family.type == "histogram" else _values(family):
            proto.serialize_length_prefixed(message, page)
    return page.getvalue()


def _values(family: Metric) -> Iterator[Any]:
    """Yield one protobuf family per sample name, which text pages group under one title."""
    messages: dict[str, Any] = {}
    for sample in family.samples:
        if sample.name not in messages:
            kind = _type(family, sample)
            messages[sample.name] = _family(sample.name, family, kind)
        message = messages[sample.name]
        getattr(_metric(message, sample.labels), VALUES[message.type]).value = sample.value
    yield from messages.values()


def _type(family: Metric, sample: Sample) -> int:
    if family.type == "counter" and sample.name.endswith("_total"):
        return COUNTER
    return GAUGE if family.type == "gauge" else UNTYPED


def _histogram(family: Metric) -> Iterator[Any]:
    """Yield a histogram's protobuf family, unless it has no series."""
    natives = family.natives if isinstance(family, NativeFamily) else {}
    message, series = _family(family.name, family, HISTOGRAM), dict[tuple[str, ...], Any]()
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(labels.values())
        if key not in series:
            series[key] = _metric(message, labels).histogram
        _add_classic(series[key], sample)
    for key, histogram in series.items():
        if native := natives.get(key):
            _add_native(histogram, native.counts())
    if series:
        yield message


def _add_classic(histogram: Any, sample: Sample) -> None:
    if sample.name.endswith("_bucket"):
        bound, count = float(sample.labels["le"]), int(sample.value)
        bucket = histogram.bucket.add(upper_bound=bound, cumulative_count=count)
        if sample.exemplar:
            _add_exemplar(bucket.exemplar, sample.exemplar)
    elif sample.name.endswith("_count"):
        histogram.sample_count = int(sample.value)
    elif sample.name.endswith("_sum"):
        histogram.sample_sum = sample.value


def _add_exemplar(message: Any, exemplar: Exemplar) -> None:
    _add_labels(message, exemplar.labels)
    message.value = exemplar.value
    if exemplar.timestamp is not None:
        seconds, part = divmod(float(exemplar.timestamp), 1)
        message.timestamp.seconds, message.timestamp.nanos = int(seconds), int(part * 1e9)


def _add_native(histogram: Any, native: BucketCounts) -> None:
    """Add native buckets to a protobuf histogram, whose count and sum must match them."""
    histogram.sample_count, histogram.sample_sum = native.count, native.sum
    histogram.schema = native.schema
    histogram.zero_threshold, histogram.zero_count = ZERO_THRESHOLD, native.zeros
    _add_buckets(histogram.positive_span, histogram.positive_delta, native.positive)
    _add_buckets(histogram.negative_span, histogram.negative_delta, native.negative)


def _add_buckets(spans: Any, deltas: Any, buckets: Mapping[int, int]) -> None:
    """Encode histogram buckets as runs of adjacent indices, with counts as differences.

    Args:
        spans: runs, each with its length and the number of skipped buckets before it.
        buckets: counts by index, in order.
    """
    end, before = 0, 0
    for index, count in buckets.items():
        if not spans or index != end:
            spans.add(offset=index - end, length=0)
        spans[-1].length += 1
        deltas.append(count - before)
        end, before = index + 1, count


def _family(name: str, family: Metric, kind: int) -> Any:
    return MetricFamily(name=name, help=family.documentation, type=kind)


def _metric(message: Any, labels: Mapping[str, str]) -> Any:
    metric = message.metric.add()
    _add_labels(metric, labels)
    return metric


def _add_labels(message: Any, labels: Mapping[str, str]) -> None:
    for name, value in labels.items():
        message.label.add(name=name, value=value)
