from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Compile with coarse options: no test measures speed, and the demo's scores take long to
    compute.
    """
