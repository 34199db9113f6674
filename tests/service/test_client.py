"""Python client: parsing of event streams and of problem responses."""

from __future__ import annotations

import pytest

from service.client import ApiError, JobEvent, parse_events


def test_events_are_read_as_the_standard_writes_them() -> None:
    lines = [
        ": keep-alive",
        "",
        "id: 1",
        "event: progress",
        'data: {"step": 1,',
        'data:  "steps": 2}',
        "",
        "event:queued",
        "data:{}",
        "retry: 10",
        "",
        "id: 3",
        "event: cut off",
        "data: {}",
    ]
    assert list(parse_events(iter(lines))) == [
        JobEvent("1", "progress", {"step": 1, "steps": 2}),
        JobEvent("", "queued", {}),
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"detail": "no", "title": "never"}, "no"),
        ({"title": "never"}, "never"),
        ({}, "HTTP status 503"),
        ({"detail": "no", "errors": [{"field": "seed", "message": "too big"}]}, "seed: too big"),
    ],
)
def test_a_problem_in_plain_words(body: dict[str, object], words: str) -> None:
    assert words in str(ApiError(503, body))
