"""Checkpoint of each family, written once per process, and selection of the cases."""

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
    """Deselect the cases that a module's `is_left_out` excludes, and mark the nightly cases.

    Pytest has no other way to exclude pairs of parameters without splitting an entry's tests.
    """
    functions = [item for item in items if isinstance(item, pytest.Function)]
    out = {item for item in functions if _says(item, "is_left_out")}
    config.hook.pytest_deselected(items=[*out])
    items[:] = [item for item in items if item not in out]
    for item in covering.nightly(item for item in items if item.path.parent == HERE):
        item.add_marker("nightly")


def _says(item: pytest.Function, name: str) -> bool:
    """Return the result of the module's rule of that name for a test's name and parameters."""
    rule = getattr(item.module, name, None)
    if rule is None:
        return False
    values = {**getattr(getattr(item, "callspec", None), "params", {}), "test": item.originalname}
    parameters = signature(rule).parameters
    if any(
        parameter.default is parameter.empty and name not in values
        for name, parameter in parameters.items()
    ):
        return False
    return bool(rule(**{name: values[name] for name in parameters if name in values}))


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Compile with few optimizations: these tests check results, not speed."""


@pytest.fixture(scope="module", params=EVERY)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].make(tmp_path_factory.mktemp("families") / family)


@pytest.fixture(scope="session")
def layout() -> Layout:
    return one_device(jax.devices()[0])
