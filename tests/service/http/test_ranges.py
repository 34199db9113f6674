"""Byte ranges and entity tags."""

from __future__ import annotations

import pytest

from service.errors.problems import RangeNotSatisfiable
from service.http.ranges import etag_matches, parse


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=2-5", (2, 6)),
        ("bytes=2-", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=5-99", (5, 10)),
        ("bytes=5-2", None),
        ("bytes=-", None),
        ("bytes=0-1,4-5", None),
        ("items=0-1", None),
        ("bytes=a-b", None),
        ("bytes=" + "9" * 5000 + "-", None),
    ],
)
def test_ranges_of_ten_bytes(header: str | None, part: tuple[int, int] | None) -> None:
    assert parse(header, 10) == part


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_range_after_the_end_is_not_satisfiable(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable) as error:
        parse(header, 10)
    assert error.value.headers == {"Content-Range": "bytes */10"}


@pytest.mark.parametrize(
    ("header", "known"),
    [
        (None, False),
        ('"a"', True),
        ('W/"a"', True),
        ('"b", "a"', True),
        ("*", True),
        ('"b"', False),
    ],
)
def test_an_entity_tag(header: str | None, known: bool) -> None:
    assert etag_matches(header, '"a"') is known
