"""Log lines in JSON and text: one event per line, with its context."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys

import pytest

from service.tracing.log_context import (
    HIDDEN,
    context_fields,
    hide_prompts,
    log_fields,
    note,
    set_process_fields,
)
from service.tracing.log_format import JsonFormatter, TextFormatter, rfc3339

log = logging.getLogger("service.test")


@pytest.fixture(autouse=True)
def of_this_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the context that a command in an earlier test may have set for the process."""
    monkeypatch.setattr("service.tracing.log_context._process_fields", {})


def said(message: str, **extra: object) -> dict[str, object]:
    record = log.makeRecord("service.test", logging.WARNING, "f", 1, message, (), None, **extra)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    return json.loads(line)


def test_each_log_line_is_a_json_object() -> None:
    line = said("two\nlines and a \ud800")
    assert line.keys() == {"time", "level", "severity", "logger", "message"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line["time"]))
    assert (line["level"], line["logger"]) == ("warning", "service.test")
    assert line["severity"] == "WARNING"  # spelling of Google's LogSeverity
    assert rfc3339(0.5) == "1970-01-01T00:00:00.500Z"


def test_line_has_context_fields() -> None:
    ids = {"request_id": "req_1", "key_id": "ab12", "job": "job_1", "tenant": "acme"}
    with log_fields(**ids), log_fields(trace_id="a" * 32, span_id="b" * 16):
        line = said("x")
    assert {name: line[name] for name in ids} == ids
    assert (line["trace_id"], line["span_id"]) == ("a" * 32, "b" * 16)
    assert "job" not in said("x")


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False)])
def test_log_line_has_cloud_logging_trace_fields(flags: str, sampled: bool) -> None:
    formatter = JsonFormatter("my-project")

    def line() -> dict[str, object]:
        return json.loads(
            formatter.format(log.makeRecord("a", logging.INFO, "f", 1, "x", (), None))
        )

    def special() -> dict[str, object]:
        return {key: value for key, value in line().items() if "googleapis" in key}

    with log_fields(trace_id="a" * 32):  # a webhook's context has no span
        assert special() == {
            "logging.googleapis.com/trace": f"projects/my-project/traces/{'a' * 32}"
        }
        with log_fields(span_id="b" * 16, trace_flags=flags):
            assert special() == {
                "logging.googleapis.com/trace": f"projects/my-project/traces/{'a' * 32}",
                "logging.googleapis.com/spanId": "b" * 16,
                "logging.googleapis.com/trace_sampled": sampled,
            }
            assert line()["trace_id"] == "a" * 32
    assert special() == {}


def test_without_a_project_a_line_has_no_special_fields() -> None:
    with log_fields(trace_id="a" * 32, span_id="b" * 16, trace_flags="01"):
        assert [key for key in said("x") if "googleapis" in key] == []


def test_lines_for_people_end_with_the_ids_of_request_and_key() -> None:
    def written(failure: object = None) -> str:
        arguments = ("s", logging.INFO, "f", 1, "it went %s", ("well",), failure)
        return TextFormatter().format(log.makeRecord(*arguments))

    with log_fields(request_id="req_1", key_id="ab12", job="job_1"):
        assert written().endswith(" s: it went well request_id=req_1 key_id=ab12")
        assert "well request_id=req_1" in written((ValueError, ValueError("x"), None))
        with log_fields(key_id=None):
            assert written().endswith(" s: it went well request_id=req_1")
    assert written().endswith(" s: it went well")


async def test_tasks_have_separate_context_fields() -> None:
    async def work(job: str) -> str:
        note(job=job)
        await asyncio.sleep(0)
        return context_fields()["job"]

    jobs = [f"job_{number}" for number in range(3)]
    assert await asyncio.gather(*map(work, jobs)) == jobs
    assert "job" not in context_fields()


def test_prompt_cannot_be_a_log_field() -> None:
    with pytest.raises(TypeError, match="prompt"):
        note(prompt="a cat")
    with pytest.raises(TypeError, match="key"):
        set_process_fields(key="atl_1")


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
async def test_a_prompt_that_others_quote_is_not_written(formatter: logging.Formatter) -> None:
    """Hides prompts in plain text, as `repr` and JSON, and line by line in indented exception
    groups."""
    prompt = 'a "red" fox\nof 1 \u00e9t\u00e9'

    async def fail() -> str:
        hide_prompts({"prompt": prompt, "negative_prompt": "blur", "width": 8, "output": {}})
        try:
            raise ExceptionGroup(
                "two", [ValueError(prompt), KeyError(prompt), ValueError(json.dumps(prompt))]
            )
        except ExceptionGroup:
            failure = sys.exc_info()
        arguments = ("no %r, %s", (prompt, "blur"), failure)
        return formatter.format(log.makeRecord("a", logging.ERROR, "f", 1, *arguments))

    line = await asyncio.create_task(fail())
    assert not [word for word in ("red", "fox", "t\u00e9", "t\\u00e9", "blur") if word in line]
    assert line.count(HIDDEN) >= 5 and "ValueError" in line
    assert "a cat" in said("a cat")["message"], "hidden in that task only"


def test_exceptions_and_warnings_are_in_the_line() -> None:
    program = """
import logging, threading, warnings
from service.tracing.log_format import log_to_stderr
from service.tracing.log_context import set_process_fields
log_to_stderr("debug", "json")
set_process_fields(pool="flux")
try:
    raise ValueError("broken")
except ValueError:
    logging.getLogger("workers.pool.worker").exception("it failed")
warnings.warn("old")
logging.getLogger("workers.pool.worker").debug("small")
logging.getLogger("elsewhere").info("not ours")
steps = logging.getLogger("workers.engine.step_loop")
thread = threading.Thread(target=lambda: steps.info("beside"))
thread.start()
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    failed, warned, small, threaded = map(json.loads, done.stderr.splitlines())
    assert failed["exception"].startswith("Traceback") and "broken" in failed["exception"]
    assert "old" in warned["message"] and warned["logger"] == "py.warnings"
    assert small["level"] == "debug"
    assert {line["pool"] for line in (failed, small, threaded)} == {"flux"}
