"""A checkpoint of each family, made once a process."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from models.parallel.axis_rules import Layout
from tests.families.suite import EVERY
from workers.slice.mesh import one_device


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a test's module says: pairs of parameters are not chosen any other way that
    keeps the tests of one entry together."""
    out = [item for item in items if isinstance(item, pytest.Function) and _is_left_out(item)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in set(out)]


def _is_left_out(item: pytest.Function) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    rule = getattr(item.module, "is_left_out", None)
    return bool(
        rule and {"family", "name"} <= params.keys() and rule(params["family"], params["name"])
    )


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
