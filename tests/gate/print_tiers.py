"""Pytest plugin that prints each collected test after its tier: `gate: ` or `nightly: `."""

from __future__ import annotations

import pytest

GATE, NIGHTLY = "gate:", "nightly:"


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        print(NIGHTLY if item.get_closest_marker("nightly") else GATE, item.nodeid)
