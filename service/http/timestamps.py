"""Times in query parameters, in the format of responses. Source: RFC 3339, section 5.6."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

_FORMAT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def _whole(text: str) -> str:
    """Validate a timestamp with a time zone. Raises: ValueError."""
    if not _FORMAT.fullmatch(text):
        raise ValueError(
            "must be a time with its zone, such as 2026-01-31T12:00:00Z; a + is written as %2B"
        )
    datetime.fromisoformat(text)
    return text


Timestamp = Annotated[
    str, AfterValidator(_whole), WithJsonSchema({"type": "string", "format": "date-time"})
]
"""Text of a time, such as `2026-01-31T12:00:00.250Z`."""


def microseconds(timestamp: str) -> int:
    """Convert a `Timestamp` to microseconds since the epoch."""
    return (datetime.fromisoformat(timestamp) - _EPOCH) // _US
