"""Format of log lines on standard error: one event per line, as text or JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from service.tracing.library_warnings import capture_warnings
from service.tracing.log_context import context_fields, redacted

LOGGERS = ("atelier", "deploy", "models", "service", "workers")
TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s%(ids)s"
IDS = ("request_id", "key_id")
"""Fields that are appended to text messages."""

GOOGLE = "logging.googleapis.com"
SAMPLED = "01"

Format = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """Log formatter with one JSON object per line.

    Fields: time (RFC 3339, UTC), level, logger, message; if known, request_id, key_id, job, tenant,
    pool, trace_id, span_id and trace_flags; for errors, exception with its traceback.

    Google's Cloud Logging reads the level from severity; without it, standard error counts as
    errors. With a Google Cloud project, a line also names its trace in Cloud Logging's format.
    """

    def __init__(self, gcp_project: str | None = None) -> None:
        super().__init__()
        self._gcp_project = gcp_project

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record as one line of JSON."""
        fields = context_fields()
        payload: dict[str, object] = {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "severity": record.levelname,
            "logger": record.name,
            "message": redacted(record.getMessage()),
            **fields,
            **(cloud_trace(fields, self._gcp_project) if self._gcp_project else {}),
        }
        if record.exc_info:
            payload["exception"] = redacted(self.formatException(record.exc_info))
        if record.stack_info:
            payload["stack"] = self.formatStack(record.stack_info)
        return json.dumps(payload)


def cloud_trace(fields: Mapping[str, str], project: str) -> dict[str, object]:
    """Return Cloud Logging's special fields for a line's trace; empty without a trace.

    Source: Cloud Logging, structured logging, special fields of a JSON payload.
    """
    if "trace_id" not in fields:
        return {}
    special: dict[str, object] = {
        f"{GOOGLE}/trace": f"projects/{project}/traces/{fields['trace_id']}"
    }
    if "span_id" in fields:
        special[f"{GOOGLE}/spanId"] = fields["span_id"]
    if "trace_flags" in fields:
        special[f"{GOOGLE}/trace_sampled"] = fields["trace_flags"] == SAMPLED
    return special


class TextFormatter(logging.Formatter):
    """Formatter of readable text, which appends the ids of request and key."""

    def __init__(self) -> None:
        super().__init__(TEXT, "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record as lines of text."""
        fields = context_fields()
        record.ids = "".join(f" {name}={fields[name]}" for name in IDS if name in fields)
        return redacted(super().format(record))


def rfc3339(seconds: float) -> str:
    """Format seconds since the epoch in RFC 3339: `2026-05-04T03:02:01.123Z`."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def log_to_stderr(level: str, form: Format = "text", gcp_project: str | None = None) -> None:
    """Configure logging: one line per event, ours from `level`, other libraries' from warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(gcp_project) if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    capture_warnings()
    for name in LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
