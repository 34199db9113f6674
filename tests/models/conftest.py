from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Nothing here asks how fast a program is; the demo's scores run for long."""
