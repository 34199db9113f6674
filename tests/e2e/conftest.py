"""A whole system, on a checkpoint with random weights that the reference libraries wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests import coarse
from tests.e2e.doors import END_S
from tests.e2e.system import System
from tests.parity.tiny import make_flux

Start = Callable[..., System]

DEFAULTS = {"width": 64, "height": 64, "num_inference_steps": 4, "max_sequence_length": 32}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Flux of random weights, in diffusers' layout; small images are its default."""
    folder = make_flux(tmp_path_factory.mktemp("checkpoint") / "flux")
    (folder / "atelier.json").write_text(json.dumps({"defaults": DEFAULTS}))
    return folder


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One state folder for the systems of a module, which follow each other: a queue remembers the
    models that it has served."""
    return tmp_path_factory.mktemp("state")


def launch(state: Path, checkpoint: Path, *arguments: str, **settings: str) -> System:
    """A system that serves the checkpoint as `tiny`; two slots, so that it compiles less."""
    pools = json.dumps({"tiny": {"model": "tiny", "slots": 2}})
    model = ("--model", f"tiny={checkpoint}", "--dtype", "float32")
    given = {"ATELIER_POOLS": pools, "XLA_FLAGS": coarse.FLAGS} | settings
    return System(state, *model, *arguments, **given)


@pytest.fixture
def start(checkpoint: Path, state: Path) -> Iterator[Start]:
    """Start a system; it ends with the test."""
    started: list[System] = []

    def run(*arguments: str, **settings: str) -> System:
        started.append(launch(state, checkpoint, *arguments, **settings))
        return started[-1]

    yield run
    for system in started:
        system.close()


@pytest.fixture(scope="module")
def system(checkpoint: Path, state: Path) -> Iterator[System]:
    """One system for the tests of a module that leave it as it is."""
    running = launch(state, checkpoint)
    yield running
    running.close()


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of the demo's models, without an address of its own for each of them."""
    system = System(tmp_path_factory.mktemp("demo"))
    try:
        with httpx.Client(base_url=system.url, timeout=END_S, trust_env=False) as http:
            yield http
    finally:
        system.close()
