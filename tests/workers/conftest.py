from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from models.parallel import jax_internals
from models.parallel.axis_rules import Layout
from service.jobs.storage.object_store import Store
from tests import compile_cache as kept_programs
from tests.workers.toy import ToyPipeline
from workers.pool import worker
from workers.pool.snapshots import Snapshots
from workers.programs.xla_cache import use_compile_cache
from workers.slice.mesh import one_device


@pytest.fixture(scope="module", autouse=True)
def leaks_are_found() -> Iterator[None]:
    """Collect garbage when a module ends, so that a leak fails the module that caused it."""
    yield
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Compile with few optimizations: no test here measures speed."""


@pytest.fixture
def pipeline() -> ToyPipeline:
    return ToyPipeline()


@pytest.fixture
def put_aside_at_once(monkeypatch: pytest.MonkeyPatch) -> float:
    """Make drains suspend jobs without waiting for their end, and wait only 0.1 s for a step.

    Returns the `drain_s` of such a drain, long enough for everything else.
    """
    suspend = Snapshots.suspend
    monkeypatch.setattr(worker, "ENDING", 0)
    monkeypatch.setattr(Snapshots, "suspend", lambda self, _: suspend(self, 0.1))
    return 1000


@pytest.fixture(scope="session")
def layout() -> Layout:
    return one_device(jax.devices()[0])


@pytest.fixture
def store() -> Store:
    return Store("memory://")


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state folder of all workers of the tests, so that they share compiled programs."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="package", autouse=True)
def compile_cache(state_dir: Path) -> Iterator[None]:
    """Share one compile cache between all tests of the package, also in later runs."""
    use_compile_cache(kept_programs.folder_of_systems() or state_dir / "compile-cache")
    yield
    set_compile_cache(None)


@pytest.fixture
def no_compile_cache(compile_cache: None) -> Iterator[None]:
    """Disable JAX's compile cache for a test."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    set_compile_cache(None)
    yield
    set_compile_cache(folder)


def set_compile_cache(folder: str | None) -> None:
    """Set the folder of JAX's compile cache. JAX opens a folder once, until the cache is reset."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax_internals.reset_cache()


@pytest.fixture(scope="session")
def flux_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the smallest complete Flux checkpoint."""
    from tests.parity.tiny import make_flux  # imports torch

    layers = {"num_layers": 1, "num_single_layers": 1}
    return make_flux(tmp_path_factory.mktemp("flux"), transformer=layers)
