"""Selection of the gate's cases of generation on two hosts: one for each family."""

from __future__ import annotations

from pathlib import Path

import pytest

DRAWING = Path(__file__).with_name("test_generation.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the nightly cases."""
    if not (drawing := [item for item in items if item.path == DRAWING]):
        return
    from tests.families import covering  # imports JAX

    for item in covering.nightly(drawing):
        item.add_marker("nightly")
