"""The gate's cases of drawing on two hosts: one for each family."""

from __future__ import annotations

import pytest

from tests.families import covering


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the nightly cases."""
    for item in covering.nightly(item for item in items if item.path.name == "test_drawing.py"):
        item.add_marker("nightly")
