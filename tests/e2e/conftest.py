"""Fixtures of complete systems, on checkpoints with random weights written by the reference
libraries."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from tests import coarse
from tests.e2e.browser import StandIns, a_browser, standins
from tests.e2e.system import System
from tests.safety_hook import HookProcess, hook_process

Start = Callable[..., System]
Files = dict[str, Path]

DEFAULTS = {"width": 64, "height": 64, "num_inference_steps": 4, "max_sequence_length": 32}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Flux with random weights in diffusers' layout; small images are its default."""
    from tests.parity.tiny import make_flux  # imports torch

    folder = make_flux(tmp_path_factory.mktemp("checkpoint") / "flux")
    (folder / "atelier.json").write_text(json.dumps({"defaults": DEFAULTS}))
    return folder


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State folder that a module's systems share in sequence; a queue remembers the models it
    served."""
    return tmp_path_factory.mktemp("state")


def launch(state: Path, checkpoint: Path, *arguments: str, **settings: str) -> System:
    """Start a system that serves the checkpoint as `tiny`, with two slots to compile less."""
    pools = json.dumps({"tiny": {"model": "tiny", "slots": 2}})
    model = ("--model", f"tiny={checkpoint}", "--dtype", "float32")
    variables = {"ATELIER_POOLS": pools, "XLA_FLAGS": coarse.FLAGS} | settings
    return System(state, *model, *arguments, **variables)


@pytest.fixture
def start(checkpoint: Path, state: Path) -> Iterator[Start]:
    """Function that starts a system; all systems end with the test."""
    started: list[System] = []

    def run(*arguments: str, **settings: str) -> System:
        started.append(launch(state, checkpoint, *arguments, **settings))
        return started[-1]

    yield run
    for system in started:
        system.close()


@pytest.fixture(scope="session")
def folders(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of `system`'s models by name."""
    from tests.e2e import served  # a slow import, needed only here

    return {"tiny": checkpoint} | served.checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def lora_files(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Adapters of the system's Flux by name."""
    from tests.e2e import served

    flux = {served.EXACT: folders[served.EXACT]}
    return served.adapters(flux, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def hook() -> Iterator[HookProcess]:
    """Safety hook that checks every output of `system`."""
    with hook_process() as running:
        yield running


@pytest.fixture(scope="session")
def system(
    folders: dict[str, Path],
    lora_files: Files,
    hook: HookProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[System]:
    """System shared by all modules of the group `system`; jobs of other modules may be present."""
    from tests.e2e import served

    variables = served.settings(folders, lora_files, hook.url)
    running = System(tmp_path_factory.mktemp("system"), XLA_FLAGS=coarse.FLAGS, **variables)
    yield running
    running.close()


@pytest.fixture(scope="session")
def http(system: System) -> Iterator[httpx.Client]:
    """HTTP client of `system`."""
    from tests.e2e.endpoints import END_S  # imports other clients' libraries

    with httpx.Client(base_url=system.url, timeout=END_S, trust_env=False) as http:
        yield http


class Demo(System):
    """`make demo` after the installation."""

    command = (sys.executable, "-P", "-m", "deploy.local.demo")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Demo of a module; it must exit with code 0."""
    running = Demo(tmp_path_factory.mktemp("demo"), XLA_FLAGS=coarse.FLAGS)
    try:
        yield running
    finally:
        running.close()
    assert running.process.returncode == 0, "\n".join(running.lines)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser per module; while it is open, no other event loop may run in this process."""
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIns]:
    """Front end shared by all modules of the group `standins`."""
    with standins(tmp_path_factory.mktemp("standins")) as running:
        yield running


@pytest.fixture
def url(stand_ins: StandIns) -> str:
    return stand_ins.url


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIns]:
    """Front end with stand-ins that requires API keys."""
    folder = tmp_path_factory.mktemp("locked")
    with standins(folder, ATELIER_SERVER__KEYS="true") as running:
        yield running
