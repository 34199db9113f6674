"""Metrics pages in both text formats: the same series, and traces as exemplars in OpenMetrics."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.samples import Sample

from service.jobs.model.job import JobState
from service.jobs.model.metrics import JobEnd, JobMetrics
from service.metrics.exposition import PROTOBUF, page
from service.settings.settings import Settings
from service.settings.telemetry import TracingSettings
from service.tracing import spans
from tests.collector import collecting
from tests.service.metrics.test_front_end import CAT
from tests.service.standin import MODEL, StandIn

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
TRACED = (
    "atelier_http_request_duration_seconds",
    "atelier_admission_seconds",
    "atelier_job_wait_seconds",
    "atelier_job_duration_seconds",
    "gen_ai_server_request_duration_seconds",
)
LIMIT = 128
"""Maximum length of an exemplar's labels in OpenMetrics."""


@pytest.fixture
def settings(settings: Settings) -> Iterator[Settings]:
    """Settings with tracing on."""
    with collecting() as collector:
        tracing = TracingSettings(endpoint=collector.url)
        with spans.exporting(tracing, "atelier-test"):
            yield settings.model_copy(update={"tracing": tracing})


def exemplars(samples: list[Sample], name: str) -> list[str]:
    """Trace ids of the exemplars in a histogram's buckets."""
    return [
        sample.exemplar.labels["trace_id"]
        for sample in samples
        if sample.name == f"{name}_bucket" and sample.exemplar
    ]


async def scraped(http: httpx.AsyncClient, accept: str = PROMETHEUS) -> list[Sample]:
    answer = await http.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.headers["vary"] == "Accept"
    return [sample for family in read_openmetrics(answer.text) for sample in family.samples]


async def generate(http: httpx.AsyncClient, trace: str, flags: str = "01") -> None:
    headers = {"traceparent": f"00-{trace}-{'1' * 16}-{flags}", "Prefer": "wait"}
    answer = await http.post("/v1/generate", json=CAT, headers=headers)
    assert answer.json()["state"] == "succeeded"


async def test_latencies_have_traces_as_exemplars(http: httpx.AsyncClient, pool: StandIn) -> None:
    trace = secrets.token_hex(16)
    await generate(http, trace)
    samples = await scraped(http)
    for name in TRACED:
        assert trace in exemplars(samples, name), name
    labels = [dict(item.exemplar.labels) for item in samples if item.exemplar]
    assert all(
        sum(len(name) + len(text) for name, text in item.items()) <= LIMIT for item in labels
    )


async def test_unrecorded_trace_gives_no_exemplar(http: httpx.AsyncClient, pool: StandIn) -> None:
    await generate(http, secrets.token_hex(16), "00")
    assert not [sample for sample in await scraped(http) if sample.exemplar]


async def test_both_formats_have_the_same_series(http: httpx.AsyncClient, pool: StandIn) -> None:
    await generate(http, secrets.token_hex(16))
    await scraped(http)  # a scrape is a request too
    text = await http.get("/metrics", headers={"Accept": "text/plain"})
    assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert " # {" not in text.text
    plain = {
        (sample.name, *sample.labels.items())
        for family in read_text(text.text)
        for sample in family.samples
    }
    assert plain == {(sample.name, *sample.labels.items()) for sample in await scraped(http)}


@pytest.mark.parametrize(
    "accept",
    [
        None, "", "*/*", "text/html", "application/json", "application/openmetrics-text;version=x",
        "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;version=1.x;escaping=none", "," * 1000, "\xff;version=\xff",
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily",
        "application/vnd.google.protobuf;proto=x;encoding=delimited",
        f"{PROTOBUF};q=0", f"{PROTOBUF};q=0.5,text/plain", f"{PROTOBUF};q=x;q=0.1,*/*",
    ],
)  # fmt: skip
def test_other_accept_headers_get_text(accept: str | None) -> None:
    registry = CollectorRegistry()
    Histogram("a", "A.", registry=registry).observe(1, {"trace_id": "0"})
    body, content_type = page(registry, accept)
    assert content_type.startswith("text/plain; version=0.0.4") and b"trace_id" not in body


@pytest.mark.parametrize(
    "accept",
    [
        PROTOBUF,
        PROTOBUF.upper(),
        # Prometheus 2.42 with native histograms
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
        ",application/openmetrics-text;version=1.0.0;q=0.8"
        ",application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        # Prometheus 3
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
        ";q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1",
        f"text/plain, {PROTOBUF};q=odd",
    ],
)
def test_preferred_protobuf_is_served(accept: str) -> None:
    registry = CollectorRegistry()
    Histogram("a", "A.", registry=registry).observe(1, {"trace_id": "0"})
    body, content_type = page(registry, accept)
    assert content_type == PROTOBUF and b"\n\x08trace_id\x12\x010" in body


@pytest.mark.parametrize(
    ("traceparent", "label"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", {"trace_id": "a" * 32, "span_id": "b" * 16}),
        (f"00-{'a' * 32}-{'b' * 16}-00", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_an_exemplar_is_a_recorded_trace(
    traceparent: str | None, label: dict[str, str] | None
) -> None:
    assert spans.exemplar_of(traceparent) == label


def test_job_ends_by_scripts_have_exemplars() -> None:
    registry = CollectorRegistry()
    metrics, trace = JobMetrics(registry), "c" * 32
    parent = {"parent": f"00-{trace}-{'b' * 16}-01"}
    times = {"created_at": "1", "finished_at": "2"}
    metrics.count_note({"event": "expired", "model": MODEL, "trace": parent, **times})
    metrics.count_note({"event": "expired", "model": MODEL, **times})
    metrics.ended(JobEnd(MODEL, JobState.CANCELED, 1.0, 2.0))
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert exemplars(samples, "atelier_job_duration_seconds") == [trace]
