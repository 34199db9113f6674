"""Failure of a follower alone: the first process gets the reason, and both end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import pytest

from deploy.local.processes import dies_with_parent
from models.parallel.axis_rules import Layout
from tests import coarse
from tests.workers.engine.test_engine import assert_is_reference, make
from tests.workers.multihost.following import CALLS, SILENCE_S
from tests.workers.polling import until
from tests.workers.pool_process import START_S
from tests.workers.toy import ToyPipeline
from workers.engine.engine import Engine
from workers.engine.errors import EngineFailed
from workers.multihost.followers import Followers
from workers.multihost.handshake import Handshake
from workers.multihost.leader import Leader
from workers.multihost.rendezvous import accept_followers, listening

pytestmark = pytest.mark.usefixtures("no_compile_cache")
TOKEN = "a secret"
SIZES, OTHER_SIZES = [1], [1, 4]

Process = tuple[subprocess.Popen[bytes], Path]


@pytest.fixture
def sizes() -> list[int]:
    """Return the follower's batch sizes."""
    return SIZES


@pytest.fixture
async def follower(tmp_path: Path, sizes: list[int]) -> AsyncIterator[tuple[Followers, Process]]:
    """Start a follower. Yield the leader's object for it, its process and its log."""
    log = tmp_path / "follower.log"
    with listening(0) as server, log.open("w") as file:
        process = started(server.getsockname()[1], sizes, file)
        await until(lambda: CALLS in log.read_text(), START_S)
        lines = accept_followers(server, 1, TOKEN, SILENCE_S)
    followers = Followers(lines, SILENCE_S)
    yield followers, (process, log)
    followers.on_loss(lambda error: None)
    process.kill()
    process.wait()
    for line in lines:
        line.close()


def started(port: int, sizes: list[int], log: IO[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.workers.multihost.following", str(port), TOKEN]
    variables = {"JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": coarse.FLAGS}
    environment = {**os.environ, **variables}
    return subprocess.Popen(
        [*command, *map(str, sizes)],
        env=environment,
        stdout=log,
        stderr=log,
        preexec_fn=dies_with_parent(),
    )


@pytest.fixture
async def engine(
    pipeline: ToyPipeline, layout: Layout, follower: tuple[Followers, Process]
) -> AsyncIterator[Engine]:
    terms = Handshake.of(pipeline, layout, SIZES, elastic=False)
    engine = Engine(pipeline, layout, 1, launcher=Leader(follower[0], terms))
    yield engine
    engine.close()


async def ended(process: Process) -> tuple[int, str]:
    """Wait for the process, and return its exit code and its log."""
    await until(lambda: process[0].poll() is not None)
    return process[0].returncode, process[1].read_text()


async def test_a_follower_out_of_memory_ends_the_slice(
    engine: Engine, pipeline: ToyPipeline, follower: tuple[Followers, Process]
) -> None:
    """The first process has enough memory, and would wait in its next collective forever."""
    assert_is_reference(await make(engine, seed=4), pipeline, seed=4)
    with pytest.raises(EngineFailed):
        await make(engine, phase="double", num_inference_steps=200_000)
    message = str(engine.failure.result())
    assert message.startswith("the slice ends: process 1 failed: it ran out of memory (RESOURCE_")
    assert "fewer slots or more devices" in message
    code, log = await ended(follower[1])
    assert code == 1
    assert "this process exits: it ran out of memory" in log, log


@pytest.mark.parametrize("sizes", [OTHER_SIZES])
async def test_a_follower_with_other_settings_is_named(
    engine: Engine, follower: tuple[Followers, Process]
) -> None:
    wrong = f"sizes is {OTHER_SIZES} here and {SIZES} in the first process"
    failure = await engine.failure
    assert str(failure) == f"the slice ends: process 1 failed: {wrong}"
    code, log = await ended(follower[1])
    assert code == os.EX_CONFIG
    assert wrong in log
