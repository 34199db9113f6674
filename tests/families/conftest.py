"""A checkpoint of each family, made once a process."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import jax
import pytest

from models.parallel.axis_rules import Layout
from tests.families import covering
from tests.families.suite import EVERY
from workers.slice.mesh import one_device

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a test's module says: pairs of parameters are not chosen any other way that
    keeps the tests of one entry together. Mark the nightly cases."""
    functions = [item for item in items if isinstance(item, pytest.Function)]
    out = {item for item in functions if _says(item, "is_left_out")}
    config.hook.pytest_deselected(items=[*out])
    items[:] = [item for item in items if item not in out]
    for item in covering.nightly(item for item in items if item.path.parent == HERE):
        item.add_marker("nightly")


def _says(item: pytest.Function, name: str) -> bool:
    """Return what the module's rule of that name says of a test's name and parameters."""
    rule = getattr(item.module, name, None)
    if rule is None:
        return False
    given = {**getattr(getattr(item, "callspec", None), "params", {}), "test": item.originalname}
    asked = signature(rule).parameters
    if any(one.default is one.empty and name not in given for name, one in asked.items()):
        return False
    return bool(rule(**{name: given[name] for name in asked if name in given}))


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
