from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Networks by themselves are; of whole pipelines all checkpoints but one a family are, which
    their modules see to."""
