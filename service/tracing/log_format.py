"""Log lines on standard error: one event a line, for people or as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from service.tracing.log_context import cleared, context_fields

OURS = ("atelier", "deploy", "models", "service", "workers")
TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s%(ids)s"
IDS = ("request_id", "key_id")
"""Fields that messages for people do not name themselves."""

GOOGLE = "logging.googleapis.com"
SAMPLED = "01"

Format = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object a line.

    With time (RFC 3339, UTC), level, logger, message; request_id, key_id, job, tenant, pool,
    trace_id, span_id and trace_flags where they are known; exception where there is one, with its
    trace.

    Google's Cloud Logging looks for the level in severity, and without it calls all of standard
    error an error. With a project of Google Cloud a line names its trace as Cloud Logging reads it,
    too.
    """

    def __init__(self, gcp_project: str | None = None) -> None:
        super().__init__()
        self._gcp_project = gcp_project

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        fields = context_fields()
        said: dict[str, object] = {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "severity": record.levelname,
            "logger": record.name,
            "message": cleared(record.getMessage()),
            **fields,
            **(cloud_trace(fields, self._gcp_project) if self._gcp_project else {}),
        }
        if record.exc_info:
            said["exception"] = cleared(self.formatException(record.exc_info))
        if record.stack_info:
            said["stack"] = self.formatStack(record.stack_info)
        return json.dumps(said)


def cloud_trace(fields: Mapping[str, str], project: str) -> dict[str, object]:
    """Return the special fields of Cloud Logging for a line's trace; none where it has no trace.

    Source: Cloud Logging, structured logging, special fields of a JSON payload.
    """
    if "trace_id" not in fields:
        return {}
    found: dict[str, object] = {
        f"{GOOGLE}/trace": f"projects/{project}/traces/{fields['trace_id']}"
    }
    if "span_id" in fields:
        found[f"{GOOGLE}/spanId"] = fields["span_id"]
    if "trace_flags" in fields:
        found[f"{GOOGLE}/trace_sampled"] = fields["trace_flags"] == SAMPLED
    return found


class TextFormatter(logging.Formatter):
    """Formatter for people.

    The message names what it is about, and the line ends with the ids of its request and key.
    """

    def __init__(self) -> None:
        super().__init__(TEXT, "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as lines of text."""
        known = context_fields()
        record.ids = "".join(f" {name}={known[name]}" for name in IDS if name in known)
        return cleared(super().format(record))


def rfc3339(seconds: float) -> str:
    """Format seconds since the epoch: `2026-05-04T03:02:01.123Z`."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def log_to_stderr(level: str, form: Format = "text", gcp_project: str | None = None) -> None:
    """Log one line an event: ours from `level` on, other libraries' from warnings on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(gcp_project) if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
