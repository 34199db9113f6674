"""A checkpoint of each family, made once a process."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from models.parallel.axis_rules import Layout
from tests.families.suite import EVERY
from workers.slice.mesh import one_device


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """What is computed is asked here, not how fast."""


@pytest.fixture(scope="module", params=EVERY)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].make(tmp_path_factory.mktemp("families") / family)


@pytest.fixture(scope="session")
def layout() -> Layout:
    return one_device(jax.devices()[0])
