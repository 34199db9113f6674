"""Print each collected test behind its tier: `gate: ` or `nightly: `. A pytest plugin."""

from __future__ import annotations

import pytest

GATE, NIGHTLY = "gate:", "nightly:"


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        print(NIGHTLY if item.get_closest_marker("nightly") else GATE, item.nodeid)
