"""Log lines on standard error: one event a line, for people or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal

from service.tracing.log_context import cleared, context_fields

OURS = ("atelier", "deploy", "models", "service", "workers")
TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

Format = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object a line.

    With time (RFC 3339, UTC), level, logger, message; job, tenant, pool, trace_id and span_id where
    they are known; exception where there is one, with its trace.

    Google's Cloud Logging looks for the level in severity, and without it calls all of standard
    error an error.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        said = {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "severity": record.levelname,
            "logger": record.name,
            "message": cleared(record.getMessage()),
            **context_fields(),
        }
        if record.exc_info:
            said["exception"] = cleared(self.formatException(record.exc_info))
        if record.stack_info:
            said["stack"] = self.formatStack(record.stack_info)
        return json.dumps(said)


class TextFormatter(logging.Formatter):
    """Formatter for people; the message names what it is about where it matters."""

    def __init__(self) -> None:
        super().__init__(TEXT, "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as lines of text."""
        return cleared(super().format(record))


def rfc3339(seconds: float) -> str:
    """Format seconds since the epoch: `2026-05-04T03:02:01.123Z`."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def log_to_stderr(level: str, form: Format = "text") -> None:
    """Log one line an event: ours from `level` on, other libraries' from warnings on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
