"""Parsing of API keys from `Authorization` headers of several schemes."""

from __future__ import annotations

import base64

import pytest

from service.auth.credentials import Scheme, key_of


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "schemes", "key"),
    [
        ("Bearer atl_1", ("bearer",), "atl_1"),
        ("bearer  atl_1 ", ("bearer",), "atl_1"),
        ("Bearer", ("bearer",), None),
        ("", ("bearer",), None),
        ("Key atl_1", ("key",), "atl_1"),
        ("Key atl_1", ("bearer",), None),
        (basic("me:atl_1"), ("bearer", "basic"), "atl_1"),
        (basic("atl_1:"), ("basic",), "atl_1"),
        (basic("me:atl:1"), ("basic",), "atl:1"),
        (basic("me:atl_1"), ("bearer",), None),
        ("Basic !", ("basic",), None),
        ("Basic " + base64.b64encode(b"\xff:\xff").decode(), ("basic",), None),
    ],
)
def test_a_key_is_read_by_the_schemes_that_are_taken(
    header: str, schemes: tuple[Scheme, ...], key: str | None
) -> None:
    assert key_of(header, schemes) == key
