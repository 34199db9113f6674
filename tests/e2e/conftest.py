"""A whole system, on a checkpoint with random weights that the reference libraries wrote."""

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
    """A tiny Flux of random weights, in diffusers' layout; small images are its default."""
    from tests.parity.tiny import make_flux  # torch: only where it is needed

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


@pytest.fixture(scope="session")
def folders(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of the models of `system`, by name."""
    from tests.e2e import served  # which takes seconds, and modules without it have no need of it

    return {"tiny": checkpoint} | served.checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def lora_files(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Adapters of its Flux, by name."""
    from tests.e2e import served

    flux = {served.EXACT: folders[served.EXACT]}
    return served.adapters(flux, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def hook() -> Iterator[HookProcess]:
    """What is asked about the safety of all that `system` draws."""
    with hook_process() as running:
        yield running


@pytest.fixture(scope="session")
def system(
    folders: dict[str, Path],
    lora_files: Files,
    hook: HookProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[System]:
    """One system for all modules of the group `system`. A job of another may be there, too."""
    from tests.e2e import served

    given = served.settings(folders, lora_files, hook.url)
    running = System(tmp_path_factory.mktemp("system"), XLA_FLAGS=coarse.FLAGS, **given)
    yield running
    running.close()


class Demo(System):
    """`make demo`, once everything is installed."""

    command = (sys.executable, "-P", "-m", "deploy.local.demo")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One demo for all modules of the group `demo`. It ends as it should."""
    running = Demo(tmp_path_factory.mktemp("demo"), XLA_FLAGS=coarse.FLAGS)
    try:
        yield running
    finally:
        running.close()
    assert running.process.returncode == 0, "\n".join(running.lines)


@pytest.fixture(scope="session")
def http(demo: Demo) -> Iterator[httpx.Client]:
    """A client of the demo's models, without an address of its own for each of them."""
    from tests.e2e.doors import END_S  # other clients' libraries

    with httpx.Client(base_url=demo.url, timeout=END_S, trust_env=False) as http:
        yield http


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each module: while it is open, no other event loop runs in this process."""
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIns]:
    """A front end for all modules of the group `standins`."""
    with standins(tmp_path_factory.mktemp("standins")) as running:
        yield running


@pytest.fixture
def url(stand_ins: StandIns) -> str:
    return stand_ins.url


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIns]:
    """The same, but it wants API keys."""
    folder = tmp_path_factory.mktemp("locked")
    with standins(folder, ATELIER_SERVER__KEYS="true") as running:
        yield running
