"""Filters of a list of jobs, by query parameters."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Query

from service.errors.problems import FieldError, Invalid
from service.http.timestamps import Timestamp, microseconds
from service.jobs.model.job import JobState
from service.jobs.model.job_filter import JobFilter

MS_US = timedelta(milliseconds=1) // timedelta(microseconds=1)
"""Microseconds of a millisecond, to which answers show times."""

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
    """Return the jobs that the query asks for. Raises: Invalid."""
    if metadata_value is not None and metadata_key is None:
        raise Invalid([FieldError("metadata_value", "needs metadata_key, whose text it is")])
    return JobFilter(
        state=state,
        model=model,
        metadata_key=metadata_key,
        metadata_value=metadata_value,
        created_from_us=_next_ms(created_after) if created_after else None,
        created_before_us=_whole_ms(created_before) if created_before else None,
    )


def _next_ms(timestamp: str) -> int:
    """Return the first moment that is shown as later."""
    return (microseconds(timestamp) // MS_US + 1) * MS_US


def _whole_ms(timestamp: str) -> int:
    """Return the first moment that is not shown as earlier."""
    return -(-microseconds(timestamp) // MS_US) * MS_US
