from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Compile single networks coarsely. Modules of whole pipelines choose the options per
    checkpoint.

    One checkpoint per family is compiled with production options.
    """
