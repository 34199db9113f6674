"""Leader and follower in one process: the follower launches each program that the leader
launches."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np
import pytest

from models.interface.pipeline import generate
from models.parallel.axis_rules import Layout
from service.settings.section import ConfigError
from tests.workers.engine.test_engine import PIXEL_TOLERANCE, assert_is_reference, at_gate, make
from tests.workers.experts import TwoExperts, fields
from tests.workers.multihost.connection_pair import SILENCE_S, ends
from tests.workers.observing import Observing
from tests.workers.polling import DEADLINE_S, until
from tests.workers.resume import disturbed_at
from tests.workers.sound_toy import SoundingToy
from tests.workers.toy import SharingToy, ToyPipeline
from workers.engine.array_framing import Message
from workers.engine.engine import Engine
from workers.engine.errors import EngineFailed
from workers.multihost.connection import Connection, ConnectionLost, started
from workers.multihost.follower import Follower
from workers.multihost.followers import Followers
from workers.multihost.handshake import Handshake
from workers.multihost.leader import Leader
from workers.programs.batch_sizes import fast
from workers.slice.mesh import one_device

SLOTS = 2
SIZES = (1, 2)
LATE_S = 1.0
"""Maximum time by which the other process compiles later."""


class Other:
    """Simulated follower process, which executes its commands in a thread."""

    def __init__(self, line: Connection, layout: Layout, pipeline: ToyPipeline) -> None:
        self.line = line
        pipeline.gate.open()
        self.follower = Follower(pipeline, layout, terms(pipeline, layout))
        self.obeyed: list[Message] = []
        self.failed: SimpleQueue[Exception] = SimpleQueue()
        self._marks: SimpleQueue[int] = SimpleQueue()
        self._numbers = itertools.count()
        self._thread = started(self._run, "other process")

    def caught_up(self, leader: Followers) -> None:
        """Wait until this process has launched all that the leader has launched.

        Raises:
            Exception: Failure of this process.
        """
        if not self.failed.empty():
            raise self.failed.get()
        mark = next(self._numbers)
        leader.send("beat", {"mark": mark})
        while self._marks.get(timeout=DEADLINE_S) != mark:
            pass

    def close(self) -> None:
        self.line.close()
        self._thread.join()
        self.follower.close()

    def _run(self) -> None:
        try:
            while True:
                message = self.line.receive()
                if answer := self.follower.handle(message):
                    self.line.send(answer)
                self.obeyed.append(message)
                if "mark" in message.fields:
                    self._marks.put(message.fields["mark"])
        except ConnectionLost:
            return
        except Exception as error:
            self.failed.put(error)


def terms(pipeline: ToyPipeline, layout: Layout) -> Handshake:
    return Handshake.of(pipeline, layout, SIZES, elastic=True)


pytestmark = pytest.mark.usefixtures("no_compile_cache")
"""JAX's cache is for processes: a thread might read a file that another thread writes."""


@pytest.fixture
def pipeline(request: pytest.FixtureRequest) -> ToyPipeline:
    return getattr(request, "param", ToyPipeline)()


@pytest.fixture
def followers() -> Iterator[tuple[Followers, Connection]]:
    near, far = ends()
    group = Followers([near], SILENCE_S)
    yield group, far
    group.on_loss(lambda error: None)  # a closed connection no longer counts as a loss
    near.close()


@pytest.fixture
def group(followers: tuple[Followers, Connection]) -> Followers:
    return followers[0]


@pytest.fixture
def other(
    followers: tuple[Followers, Connection], layout: Layout, pipeline: ToyPipeline
) -> Iterator[Other]:
    other = Other(followers[1], layout, type(pipeline)())
    yield other
    followers[0].on_loss(lambda error: None)
    other.close()


@pytest.fixture
async def engine(
    pipeline: ToyPipeline, layout: Layout, group: Followers, other: Other
) -> AsyncIterator[Engine]:
    leader = Leader(group, terms(pipeline, layout))
    engine = Engine(pipeline, layout, SLOTS, fast(SLOTS, SIZES), launcher=leader)
    yield engine
    pipeline.gate.open()
    engine.close()


async def test_follower_launches_the_same_programs(
    engine: Engine, pipeline: ToyPipeline, group: Followers, other: Other
) -> None:
    """Images of several kinds, side by side and in one batch, with previews.

    Each of their states is bitwise equal in both processes.
    """
    await engine.readiness.warm_up([{}])
    await engine.readiness.larger_ready([{}])
    requests = [
        {"seed": 1, "num_inference_steps": 50},  # enough to share a step with the next image
        {"seed": 4, "num_inference_steps": 50},
        {"seed": 2, "num_inference_steps": 6, "phase": "noisy"},
        {"seed": 3, "width": 64, "second_phase": "double"},
        {"seed": 7, "num_inference_steps": 20, "phase": "told"},
    ]
    states: list[np.ndarray] = []
    previews: list[asyncio.Task[np.ndarray]] = []

    def on_step(row: Any) -> None:
        state = row.verified_state
        other.caught_up(group)
        remote = other.follower.rows[state.handle.number]
        states.append(np.asarray(remote["latents"] == state.row["latents"]))
        previews.append(asyncio.create_task(engine.preview(row)))

    pictures = await asyncio.gather(*(engine.generate(r, {}, Observing(on_step)) for r in requests))
    for picture, request in zip(pictures, requests, strict=True):
        assert_is_reference(picture, pipeline, **request)
    assert len(states) == 50 + 50 + 6 + 4 + 20
    while 2 not in batches(other):  # on a busy machine 50 steps may share none
        pair = ({"seed": seed, "num_inference_steps": 200} for seed in (5, 6))
        pictures += await asyncio.gather(
            *(engine.generate(options, {}, Observing(on_step)) for options in pair)
        )
        other.caught_up(group)
    await asyncio.gather(*previews)
    assert all(same.all() for same in states)
    other.caught_up(group)
    kinds = [message.kind for message in other.obeyed]
    assert kinds.count("show") == len(pictures) + len(previews)
    assert kinds.count("grow") >= 2
    assert kinds.count("conditions") == 2  # for sixteen steps each
    assert other.failed.empty()


def batches(other: Other) -> set[int]:
    """Return the numbers of rows in the steps that the other process has executed."""
    return {len(message.fields.get("rows", ())) for message in other.obeyed}


async def test_first_launch_waits_until_followers_have_compiled(
    engine: Engine, pipeline: ToyPipeline, group: Followers, other: Other
) -> None:
    """Gloo fails if a process joins a collective half a minute late."""
    ours, theirs = engine.programs._compiler, other.follower._programs._compiler
    compile_ours, compile_theirs = ours.step, theirs.step
    launched, order = threading.Event(), []

    def compiled_at_once(*arguments: Any) -> Any:
        program, changes = compile_ours(*arguments)

        def launch(*arguments: Any) -> Any:
            order.append("launched")
            launched.set()
            return program(*arguments)

        return launch, changes

    def compiled_late(*arguments: Any) -> Any:
        launched.wait(LATE_S)
        order.append("compiled")
        return compile_theirs(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "step", compiled_at_once)
        patch.setattr(theirs, "step", compiled_late)
        assert_is_reference(await make(engine), pipeline)
    assert order[:2] == ["compiled", "launched"]
    other.caught_up(group)
    awaited = messages_sent(other, "await")
    assert_is_reference(await make(engine, seed=2), pipeline, seed=2)
    other.caught_up(group)
    assert messages_sent(other, "await") == awaited == 3, (
        "encoder, step, decoder: each is asked for once"
    )


def messages_sent(other: Other, kind: str) -> int:
    """Return the number of messages of a kind that the other process has executed."""
    return sum(message.kind == kind for message in other.obeyed)


async def test_process_lost_during_compilation_fails_waiting_jobs(
    engine: Engine, group: Followers, other: Other
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        forever = threading.Event()
        patch.setattr(other.follower._programs._compiler, "decode", lambda row: forever.wait())
        waiting = asyncio.create_task(make(engine))
        await until(lambda: messages_sent(other, "step") == 4)
        other.line.close()
        with pytest.raises(EngineFailed, match="connection to there is lost"):
            await waiting
        forever.set()


async def test_follower_drops_unreferenced_rows(
    engine: Engine, pipeline: ToyPipeline, group: Followers, other: Other
) -> None:
    task = asyncio.create_task(make(engine, num_inference_steps=50, phase="gated"))
    await at_gate(pipeline)
    other.caught_up(group)
    assert other.follower.rows, "rows under way are kept"
    task.cancel()
    pipeline.gate.open()
    await make(engine, seed=2)
    del task

    def forgotten() -> bool:
        gc.collect()
        other.caught_up(group)  # delivers the dropped rows
        return not other.follower.rows

    await until(forgotten)


@pytest.mark.parametrize("pipeline", [SharingToy], indirect=True)
async def test_programs_of_several_sizes_outlive_the_first_size(
    engine: Engine, pipeline: ToyPipeline, group: Followers, other: Other
) -> None:
    """The other process finds a program by the bucket that it was compiled for."""
    for seed in (1, 2):
        assert_is_reference(
            await make(engine, seed=seed, phase="told"), pipeline, seed=seed, phase="told"
        )
    first, second = (f"32x16xNone,plain,{seed}" for seed in (1, 2))
    bucket = engine.programs._buckets[second]
    for buckets in (engine.programs._buckets, engine.costs._buckets):
        buckets.clear()
    engine.programs._buckets[second] = bucket
    gc.collect()
    again = await make(engine, seed=2, phase="told", num_inference_steps=6)
    assert_is_reference(again, pipeline, seed=2, phase="told", num_inference_steps=6)
    other.caught_up(group)
    assert first not in engine.programs._buckets and other.failed.empty()


async def test_follower_resumes_the_same_snapshot(
    engine: Engine, pipeline: ToyPipeline, group: Followers, other: Other
) -> None:
    fields = {"num_inference_steps": 30, "seed": 6, "phase": "noisy"}
    full, snapshot = await disturbed_at(3, engine, fields, {})
    latents: list[np.ndarray] = []

    def on_step(row: Any) -> None:
        state = row.verified_state  # before the mark: the loop goes on meanwhile
        other.caught_up(group)
        remote = other.follower.rows[state.handle.number]
        latents.append(np.asarray(remote["latents"] == state.row["latents"]))

    resumed = await engine.generate(fields, {}, Observing(on_step), snapshot)
    assert (resumed.pixels == full.pixels).all()
    assert len(latents) == 30 - snapshot.done
    assert all(same.all() for same in latents)


@pytest.mark.parametrize("pipeline", [TwoExperts], indirect=True)
async def test_each_process_swaps_its_own_experts(
    engine: Engine, pipeline: TwoExperts, group: Followers, other: Other
) -> None:
    """Images run one after the other, so that the experts are swapped several times."""
    for seed in range(2):
        picture = await engine.generate(fields(4, seed), {})
        expected = generate(pipeline, fields(4, seed), {}).astype(int)
        assert np.abs(picture.pixels - expected).max() <= PIXEL_TOLERANCE
    latents: list[np.ndarray] = []

    def on_step(row: Any) -> None:
        state = row.verified_state  # before the mark: the loop goes on meanwhile
        other.caught_up(group)
        remote = other.follower.rows[state.handle.number]
        latents.append(np.asarray(remote["latents"] == state.row["latents"]))

    await engine.generate(fields(4), {}, Observing(on_step))
    assert len(latents) == 4
    assert all(same.all() for same in latents)


@pytest.mark.parametrize("pipeline", [SoundingToy], indirect=True)
async def test_sound_is_returned_with_the_frames(engine: Engine, pipeline: SoundingToy) -> None:
    output = await make(engine, num_frames=5)
    expected = generate(pipeline, {"num_frames": 5}, {})
    assert output.sound is not None
    np.testing.assert_allclose(output.sound, expected.sound, atol=1e-3)
    assert np.abs(output.pixels - expected.pixels.astype(int)).max() <= PIXEL_TOLERANCE


async def test_lost_process_fails_waiting_jobs(
    engine: Engine, pipeline: ToyPipeline, group: Followers, other: Other
) -> None:
    """The step loop is blocked in a step, like a device that waits for a lost process."""
    waiting = asyncio.create_task(make(engine, phase="gated"))
    await at_gate(pipeline)
    other.line.close()
    with pytest.raises(EngineFailed, match="connection to there is lost"):
        await waiting
    with pytest.raises(EngineFailed):
        await make(engine)


async def test_an_error_of_a_program_ends_the_slice(
    engine: Engine, group: Followers, other: Other
) -> None:
    """The program may have failed only here, and the other processes would wait in it forever."""
    with pytest.raises(EngineFailed, match="RESOURCE_EXHAUSTED"):
        await make(engine, phase="hopeless")
    assert isinstance(engine.failure.result(), EngineFailed)


async def test_failed_compilation_fails_only_its_image(
    engine: Engine, pipeline: ToyPipeline, other: Other
) -> None:
    """No program has been launched yet."""
    with pytest.raises(Exception, match="compiling"):
        await make(engine, phase="flawed")
    assert_is_reference(await make(engine, seed=4), pipeline, seed=4)


def test_a_process_with_other_settings_refuses(
    pipeline: ToyPipeline, layout: Layout, other: Other
) -> None:
    ours = terms(pipeline, layout)
    for changed in (replace(ours, jax="0.1"), replace(ours, sizes=[1, 4])):
        message = Message("terms", {**changed.as_json(), "drop": []})
        with pytest.raises(ConfigError, match=r"in the first process"):
            other.follower.handle(message)
    other.follower.handle(Message("terms", {**ours.as_json(), "drop": []}))


def test_devices_are_part_of_the_terms(pipeline: ToyPipeline, layout: Layout) -> None:
    second = one_device(jax.devices()[1])
    difference = terms(pipeline, second).difference(terms(pipeline, layout).as_json())
    assert difference == "devices is [1] here and [0] in the first process"
