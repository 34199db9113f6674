"""What a client's `traceparent` may be, and that nothing of tracing is there while it is off."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.http.trace_requests import TraceRequests
from service.jobs.model.job import Job
from service.jobs.model.serialization import from_hash, to_hash
from service.settings.section import ConfigError
from service.settings.tracing import TracingSettings
from service.tracing import spans
from service.tracing.log_context import about, context_fields, note
from service.tracing.opentelemetry import Seldom
from service.tracing.span import NOTHING
from tests.collector import collecting
from tests.test_arrows import ROOT

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (GOOD, GOOD),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-03", GOOD),  # the second flag is no business of ours
        (f"cc-{TRACE}-{SPAN}-01", GOOD),  # a later version begins like this one
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", GOOD),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (GOOD.upper(), None),
        (f" {GOOD}", None),
        (f"{GOOD}\n", None),
        (GOOD[:-1], None),
        ("", None),
        (None, None),
        ("00-" + "a" * 100_000, None),
        (f"00-{TRACE}-{SPAN}-٠١", None),
    ],
)
def test_a_clients_header_is_well_formed_or_ignored(given: str | None, taken: str | None) -> None:
    assert spans.parse(given) == taken


@given(st.text())
def test_no_text_does_harm(text: str) -> None:
    assert spans.parse(text) in (None, spans.parse(spans.parse(text)))


def test_while_off_a_span_is_nothing() -> None:
    with spans.exporting(TracingSettings(), "atelier-test"), spans.span("a") as a:
        assert a is NOTHING and spans.here() is NOTHING and a.traceparent is None
        assert spans.begin("b") is NOTHING


LOOK = """
import sys
from service.settings.tracing import TracingSettings
from service.tracing import spans
import {module}
with spans.exporting(TracingSettings(endpoint={endpoint!r}), "x"), spans.span("a"):
    pass
"""


def loaded(module: str, endpoint: str | None, *hidden: str) -> str:
    """OpenTelemetry's modules in a process that has imported that one, or its last complaint."""
    return loaded_after(LOOK.format(module=module, endpoint=endpoint), *hidden)


def loaded_after(program: str, *hidden: str) -> str:
    """OpenTelemetry's modules in a process that has run that, or its last complaint."""
    hide = "".join(f"import sys; sys.modules[{name!r}] = None\n" for name in hidden)
    show = "import sys\nprint([name for name in sys.modules if name.startswith('opentelemetry')])"
    look = f"{hide}{program}\n{show}"
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def test_while_off_nothing_of_it_is_loaded() -> None:
    """FastAPI and redis-py have modules of OpenTelemetry's for themselves, where it is installed;
    what records and sends spans is not there."""
    there = loaded("service.server, workers.pool.process", None)
    assert there.startswith("[")
    assert "opentelemetry.sdk.trace" not in there and "opentelemetry.exporter" not in there


def test_what_is_missing_is_named_at_the_start() -> None:
    there = loaded("service.tracing", "http://127.0.0.1:9")
    assert "opentelemetry.sdk.trace" in there
    said = loaded("service.tracing", "http://127.0.0.1:9", "opentelemetry.sdk")
    assert said.startswith(f"{ConfigError.__module__}.{ConfigError.__name__}")
    assert "pip install -e '.[otel]'" in said and "opentelemetry.sdk" in said


def test_a_job_of_before_has_no_trace() -> None:
    job = Job(id="job_1", model="m", bucket="b", traceparent=GOOD)
    fields = to_hash(job)
    assert from_hash(fields).traceparent == GOOD
    del fields["traceparent"]
    assert from_hash(fields).traceparent is None
    assert "traceparent" not in to_hash(from_hash(fields))


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://collector/mine", "http://collector/mine"),
    ],
)
def test_an_endpoint_has_a_path(endpoint: str, address: str) -> None:
    assert TracingSettings(endpoint=endpoint).address == address


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector:4317", "http://", ""])
def test_an_endpoint_that_cannot_be_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="endpoint"):
        TracingSettings(endpoint=endpoint)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a collector that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_collector_that_hangs_keeps_nobody(silent: str) -> None:
    """More spans than there is room for are begun and ended; whoever leaves does not wait for the
    answer that never comes. The one that sends them waits still: for ten seconds in all."""
    with spans.exporting(TracingSettings(endpoint=silent), "atelier-test"):
        for _ in range(10_000):
            with spans.span("a"):
                pass
    assert any(thread.name == "last spans" for thread in threading.enumerate())
    assert spans.begin("b") is NOTHING


def test_the_same_claim_is_the_same_span(silent: str) -> None:
    with spans.exporting(TracingSettings(endpoint=silent), "atelier-test"):
        twice = [spans.begin("a", parent=GOOD, identity="job_1 1") for _ in range(2)]
        other = spans.begin("a", parent=GOOD, identity="job_1 2")
        plain = spans.begin("a", parent=GOOD)
    names = {span.traceparent for span in (*twice, other, plain)}
    assert len(names) == 3 and all(TRACE in str(name) for name in names)


def test_a_span_is_where_it_was_begun() -> None:
    with (
        collecting() as collector,
        spans.exporting(TracingSettings(endpoint=collector.url), "atelier-test"),
    ):
        with about():
            with spans.span("outer") as outer, spans.saying({"a": 1}):
                note(job="job_1")
                with spans.span("inner") as inner:
                    assert context_fields()["span_id"] == inner.names["span_id"]
                    note(tenant="acme")
                assert spans.here() is outer
                assert context_fields()["span_id"] == outer.names["span_id"]
            known = context_fields()
            assert (known["job"], known["tenant"]) == ("job_1", "acme")
            assert not known.keys() & {"trace_id", "span_id"}
        assert spans.here() is NOTHING


def test_what_has_ended_can_be_sent_at_once() -> None:
    """For a process that may not come to its tidy end; by itself it is sent once a second."""
    with (
        collecting() as collector,
        spans.exporting(TracingSettings(endpoint=collector.url), "atelier-test"),
    ):
        for name in ("a", "b"):
            with spans.span(name):
                pass
            spans.flush()
            assert collector.spans[-1].name == name


async def test_who_logs_what_broke_a_request_knows_its_trace() -> None:
    async def broken(scope: object, receive: object, send: object) -> None:
        raise ValueError

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    with collecting() as collector:
        settings = TracingSettings(endpoint=collector.url)
        with spans.exporting(settings, "atelier-test"), about():
            with pytest.raises(ValueError):
                await TraceRequests(broken, follows=True)(scope, broken, broken)
            known = context_fields()
        (span,) = collector.spans
    assert (span.trace, span.id) == (known["trace_id"], known["span_id"])
    assert (span.name, span.error) == ("GET", "ValueError")


def test_what_opentelemetrys_own_variables_ask_for_and_cannot_be_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9999")
    settings = TracingSettings(endpoint="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="max_export_batch_size"):
        spans.exporting(settings, "atelier-test").__enter__()


def test_where_opentelemetry_is_switched_off_nothing_has_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with spans.exporting(TracingSettings(endpoint="http://127.0.0.1:9"), "atelier-test"):
        assert spans.begin("a") is NOTHING


def test_a_collector_that_is_away_is_complained_of_seldom() -> None:
    def line(created: float) -> logging.LogRecord:
        return logging.makeLogRecord({"created": created})

    seldom = Seldom()
    taken = [at for at in (1000, 1001, 1059, 1060, 1061) if seldom.filter(line(at))]
    assert taken == [1000, 1060]
