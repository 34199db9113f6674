from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Compile with coarse options: layouts need many programs that run a few times."""
