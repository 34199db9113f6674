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
    """Collect garbage at a module's end: what it left open fails it and no later one."""
    yield
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Nothing here asks how fast a program is."""


@pytest.fixture
def pipeline() -> ToyPipeline:
    return ToyPipeline()


@pytest.fixture
def put_aside_at_once(monkeypatch: pytest.MonkeyPatch) -> float:
    """Let drains wait for no job's end and hardly for a step, and keep all else as long as it
    takes. The time of such a drain."""
    put_aside = Snapshots.put_aside
    monkeypatch.setattr(worker, "ENDING", 0)
    monkeypatch.setattr(Snapshots, "put_aside", lambda self, _: put_aside(self, 0.1))
    return 1000


@pytest.fixture(scope="session")
def layout() -> Layout:
    return one_device(jax.devices()[0])


@pytest.fixture
def store() -> Store:
    return Store("memory://")


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all pools of the tests, so that they share what they compile."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="package", autouse=True)
def compile_cache(state_dir: Path) -> Iterator[None]:
    """Keep what one test has compiled for the others, in further runs too."""
    use_compile_cache(kept_programs.folder_of_systems() or state_dir / "compile-cache")
    yield
    set_compile_cache(None)


@pytest.fixture
def no_compile_cache(compile_cache: None) -> Iterator[None]:
    """Nothing is read from what other tests have compiled, nor written there."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    set_compile_cache(None)
    yield
    set_compile_cache(folder)


def set_compile_cache(folder: str | None) -> None:
    """JAX opens a folder once, and keeps to it until it is told to open another."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax_internals.reset_cache()


@pytest.fixture(scope="session")
def flux_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest complete Flux checkpoint."""
    from tests.parity.tiny import make_flux  # torch: only where it is needed

    one = {"num_layers": 1, "num_single_layers": 1}
    return make_flux(tmp_path_factory.mktemp("flux"), transformer=one)
