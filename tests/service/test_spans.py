"""Parsing of a client's `traceparent`, and tracing that is switched off loads nothing."""

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
from opentelemetry.trace import INVALID_SPAN, get_current_span
from pydantic import ValidationError
from starlette.types import Message, Receive, Scope, Send

from service.errors.late_status import record_late_status
from service.http.trace_requests import TraceRequests
from service.jobs.model.job import Job
from service.jobs.model.serialization import from_hash, to_hash
from service.settings.section import ConfigError
from service.settings.telemetry import TracingSettings
from service.tracing import spans
from service.tracing.exporter import RateLimitFilter
from service.tracing.log_context import context_fields, log_fields, note
from tests.collector import collecting
from tests.test_arrows import ROOT

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (GOOD, GOOD),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-03", GOOD),  # other flags are ignored
        (f"cc-{TRACE}-{SPAN}-01", GOOD),  # a later version begins with the same fields
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
def test_traceparent_header_is_valid_or_ignored(given: str | None, taken: str | None) -> None:
    assert spans.parse(given) == taken


@given(st.text())
def test_no_text_does_harm(text: str) -> None:
    assert spans.parse(text) in (None, spans.parse(spans.parse(text)))


def test_disabled_tracing_creates_no_spans() -> None:
    with spans.exporting(TracingSettings(), "atelier-test"), spans.span("a") as a:
        assert a is INVALID_SPAN and spans.current_traceparent() is None
        assert spans.begin("b") is INVALID_SPAN


def test_disabled_tracing_forwards_foreign_traces() -> None:
    with spans.within(spans.begin("a", parent=GOOD)) as a, spans.span("b"):
        assert spans.current_traceparent() == GOOD and context_fields()["trace_id"] == TRACE
        assert not a.is_recording()
    assert spans.current_traceparent() is None and "trace_id" not in context_fields()


LOOK = """
import sys
from service.settings.telemetry import TracingSettings
from service.tracing import spans
import {module}
with spans.exporting(TracingSettings(endpoint={endpoint!r}), "x"), spans.span("a"):
    pass
"""


def loaded(module: str, endpoint: str | None, *hidden: str) -> str:
    """OpenTelemetry's modules in a process that has imported `module`, or its last error line."""
    return loaded_after(LOOK.format(module=module, endpoint=endpoint), *hidden)


def loaded_after(program: str, *hidden: str) -> str:
    """OpenTelemetry's modules in a process that has run `program`, or its last error line."""
    hide = "".join(f"import sys; sys.modules[{name!r}] = None\n" for name in hidden)
    show = "import sys\nprint([name for name in sys.modules if name.startswith('opentelemetry')])"
    look = f"{hide}{program}\n{show}"
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def test_disabled_tracing_loads_no_sdk() -> None:
    """FastAPI and redis-py import modules of an installed OpenTelemetry. The modules that record
    and export spans are not loaded."""
    modules = loaded("service.server, workers.pool.process", None)
    assert modules.startswith("[")
    assert "opentelemetry.sdk.trace" not in modules and "opentelemetry.exporter" not in modules


def test_missing_package_is_named_at_start() -> None:
    modules = loaded("service.tracing", "http://127.0.0.1:9")
    assert "opentelemetry.sdk.trace" in modules
    message = loaded("service.tracing", "http://127.0.0.1:9", "opentelemetry.sdk")
    assert message.startswith(f"{ConfigError.__module__}.{ConfigError.__name__}")
    assert "pip install -e '.[otel]'" in message and "opentelemetry.sdk" in message


def test_job_of_an_earlier_version_has_no_trace() -> None:
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
    """Address of a collector that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_hanging_collector_does_not_block_the_exit(silent: str) -> None:
    """Begin and end more spans than the buffer holds. The exit does not wait for the missing
    response; only the exporting thread waits, for ten seconds in all."""
    with spans.exporting(TracingSettings(endpoint=silent), "atelier-test"):
        for _ in range(10_000):
            with spans.span("a"):
                pass
    assert any(thread.name == "last spans" for thread in threading.enumerate())
    assert spans.begin("b") is INVALID_SPAN


def test_repeated_span_of_a_claim_has_the_same_id(silent: str) -> None:
    with spans.exporting(TracingSettings(endpoint=silent), "atelier-test"):
        twice = [spans.begin("a", parent=GOOD, identity="job_1 1") for _ in range(2)]
        other = spans.begin("a", parent=GOOD, identity="job_1 2")
        plain = spans.begin("a", parent=GOOD)
    names = {spans.traceparent_of(span) for span in (*twice, other, plain)}
    assert len(names) == 3 and all(TRACE in str(name) for name in names)


def test_span_has_the_context_of_its_start() -> None:
    with (
        collecting() as collector,
        spans.exporting(TracingSettings(endpoint=collector.url), "atelier-test"),
    ):
        with log_fields():
            with spans.span("outer") as outer, spans.with_attributes({"a": 1}):
                note(job="job_1")
                with spans.span("inner") as inner:
                    assert context_fields()["span_id"] == spans.log_ids(inner)["span_id"]
                    note(tenant="acme")
                assert get_current_span() is outer
                assert context_fields()["span_id"] == spans.log_ids(outer)["span_id"]
            fields = context_fields()
            assert (fields["job"], fields["tenant"]) == ("job_1", "acme")
            assert not fields.keys() & {"trace_id", "span_id"}
        assert get_current_span() is INVALID_SPAN


def test_flush_sends_ended_spans() -> None:
    """`flush` is for processes that may exit abruptly; otherwise spans are sent once a second."""
    with (
        collecting() as collector,
        spans.exporting(TracingSettings(endpoint=collector.url), "atelier-test"),
    ):
        for name in ("a", "b"):
            with spans.span(name):
                pass
            spans.flush()
            assert collector.spans[-1].name == name


async def test_exception_log_has_the_trace_of_the_request() -> None:
    async def broken(scope: object, receive: object, send: object) -> None:
        raise ValueError

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    with collecting() as collector:
        settings = TracingSettings(endpoint=collector.url)
        with spans.exporting(settings, "atelier-test"), log_fields():
            with pytest.raises(ValueError):
                await TraceRequests(broken, follows=True)(scope, broken, broken)
            fields = context_fields()
        (span,) = collector.spans
    assert (span.trace, span.id) == (fields["trace_id"], fields["span_id"])
    assert (span.name, span.error) == ("GET", "ValueError")


async def test_a_span_has_the_status_of_an_error_after_the_response_has_begun() -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        record_late_status(scope, 504)

    async def ignore(message: Message) -> None: ...

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "path": "/fal/run/a", "headers": []}
    with collecting() as collector:
        settings = TracingSettings(endpoint=collector.url)
        with spans.exporting(settings, "atelier-test"), log_fields():
            await TraceRequests(late, follows=False)(scope, nothing, ignore)
        (span,) = collector.spans
    assert span.attributes["http.response.status_code"] == 504 and span.error == "504"


def test_invalid_opentelemetry_variables_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9999")
    settings = TracingSettings(endpoint="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="max_export_batch_size"):
        spans.exporting(settings, "atelier-test").__enter__()


def test_otel_sdk_disabled_prevents_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with spans.exporting(TracingSettings(endpoint="http://127.0.0.1:9"), "atelier-test"):
        assert spans.begin("a") is INVALID_SPAN


def test_unreachable_collector_is_logged_rarely() -> None:
    def line(created: float) -> logging.LogRecord:
        return logging.makeLogRecord({"created": created})

    seldom = RateLimitFilter()
    logged = [second for second in (1000, 1001, 1059, 1060, 1061) if seldom.filter(line(second))]
    assert logged == [1000, 1060]
