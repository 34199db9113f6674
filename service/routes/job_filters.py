"""Query parameters that filter a list of jobs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator, WithJsonSchema

from service.errors.problems import FieldError, Invalid
from service.jobs.model.job import JobState
from service.jobs.model.job_filter import JobFilter

_FORMAT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def _whole(text: str) -> str:
    """Parse a query parameter for a timestamp with a time zone. Raises: ValueError."""
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
    """Convert a `Timestamp` parameter to microseconds since the epoch."""
    return (datetime.fromisoformat(timestamp) - _EPOCH) // _US


MS_US = timedelta(milliseconds=1) // timedelta(microseconds=1)
"""Microseconds of a millisecond, the precision of times in responses."""

State = Annotated[JobState | None, Query(description="Only jobs in this state.")]
Model = Annotated[
    str | None, Query(max_length=200, description="Only jobs of this model, by its `name`.")
]
Key = Annotated[
    str | None, Query(max_length=200, description="Only jobs whose `metadata` has this name.")
]
Value = Annotated[
    str | None,
    Query(max_length=512, description="Only jobs whose `metadata_key` has this text."),
]
After = Annotated[Timestamp | None, Query(description="Only jobs whose `created_at` is later.")]
Before = Annotated[Timestamp | None, Query(description="Only jobs whose `created_at` is earlier.")]


async def filter_of_query(
    state: State = None,
    model: Model = None,
    metadata_key: Key = None,
    metadata_value: Value = None,
    created_after: After = None,
    created_before: Before = None,
) -> JobFilter:
    """Build a job filter from the query parameters. Raises: Invalid."""
    if metadata_value is not None and metadata_key is None:
        raise Invalid([FieldError("metadata_value", "needs metadata_key, whose value it is")])
    return JobFilter(
        state=state,
        model=model,
        metadata_key=metadata_key,
        metadata_value=metadata_value,
        created_from_us=_next_ms(created_after) if created_after else None,
        created_before_us=_whole_ms(created_before) if created_before else None,
    )


def _next_ms(timestamp: str) -> int:
    """Return the first microsecond whose displayed time is later than the timestamp."""
    return (microseconds(timestamp) // MS_US + 1) * MS_US


def _whole_ms(timestamp: str) -> int:
    """Return the first microsecond whose displayed time is not earlier than the timestamp."""
    return -(-microseconds(timestamp) // MS_US) * MS_US
