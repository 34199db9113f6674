"""Compilation of a bucket's programs when images that need them are canceled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from models.parallel.axis_rules import Layout
from tests.workers.observing import Observing
from tests.workers.polling import DEADLINE_S, until
from tests.workers.toy import SPEC, SharingToy, ToyPipeline
from workers.engine.engine import Engine
from workers.engine.errors import GenerationFailed
from workers.engine.generation import EngineOutput
from workers.programs.batch_sizes import fast
from workers.programs.compilation import Compilation

pytestmark = pytest.mark.usefixtures("no_compile_cache")

SLOW = {"phase": "slow-to-compile"}


class TwoGates(ToyPipeline):
    """Toy pipeline whose phase "slower" waits for a second gate when it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.second_gate = threading.Event()

    def step(self, program: Any, *args: Any, **kwargs: Any) -> Any:
        if program.network == "slower":
            assert self.second_gate.wait(DEADLINE_S)
        return super().step(program, *args, **kwargs)


@pytest.fixture
def gates() -> TwoGates:
    return TwoGates()


@pytest.fixture
async def engine(gates: TwoGates, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(gates, layout, slots=4, batching=fast(4, (1, 2, 4), False))
    yield engine
    gates.compile_gate.set()
    gates.second_gate.set()
    engine.close()


class Asking:
    """Generates images, and records the compilation that each is charged for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.owed: dict[str, Compilation] = {}

    def make(self, name: str, **fields: Any) -> asyncio.Task[EngineOutput]:
        def owe(compilation: Compilation) -> None:
            self.owed[name] = compilation

        request = {**SPEC.defaults, **fields}
        making: Coroutine[Any, Any, EngineOutput]
        making = self.engine.generate(request, {}, observer=Observing(on_compile=owe))
        return asyncio.create_task(making)

    async def asked(self, name: str, **fields: Any) -> asyncio.Task[EngineOutput]:
        """Start an image, and return when its programs wait for a compiler."""
        task = self.make(name, **fields)
        await until(lambda: name in self.owed)
        return task


@pytest.fixture
def asking(engine: Engine) -> Asking:
    return Asking(engine)


async def leave(task: asyncio.Task[EngineOutput]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_unneeded_programs_are_not_compiled(
    engine: Engine, gates: TwoGates, asking: Asking
) -> None:
    first = await asking.asked("first", **SLOW)
    left = [await asking.asked(f"{width}", width=width) for width in (40, 48)]
    for task in left:
        await leave(task)
    dropped = [program for name in ("40", "48") for program in asking.owed[name].programs]
    gates.compile_gate.set()
    await first
    assert all(asking.owed[name].is_over for name in ("40", "48"))
    assert sum(program.cancelled() for program in dropped) >= len(dropped) - 2, "of two threads"
    assert {shape.bucket for shape in engine.programs._buckets.values()} == {"32x16xNone,plain"}
    assert (await asking.make("again", width=40)).steps == 4


async def test_program_needed_by_another_image_is_compiled(gates: TwoGates, asking: Asking) -> None:
    await asking.asked("first", **SLOW)
    owner = await asking.asked("owner", width=40)
    other = asking.make("other", width=40)
    await until(lambda: len(_shape(asking, "40x16xNone,plain").awaited) == 2)
    await leave(owner)
    assert not any(program.cancelled() for program in asking.owed["owner"].programs)
    gates.compile_gate.set()
    assert (await other).steps == 4
    assert "other" not in asking.owed and asking.owed["owner"].spent_s > 0


async def test_existing_programs_of_a_bucket_are_kept(gates: TwoGates, asking: Asking) -> None:
    await asking.make("before")
    shape = _shape(asking, "32x16xNone,plain")
    ready = {name: dict(step_kind.programs) for name, step_kind in shape.step_kinds.items()}
    first = await asking.asked("first", width=40, **SLOW)
    await leave(await asking.asked("left", phase="double"))
    assert {name: dict(step_kind.programs) for name, step_kind in shape.step_kinds.items()} == ready
    gates.compile_gate.set()
    await first
    assert (await asking.make("again", phase="double")).steps == 4
    assert _shape(asking, shape.bucket) is shape


async def test_larger_batches_that_were_dropped_are_compiled_for_the_next_one(
    engine: Engine, gates: TwoGates, asking: Asking
) -> None:
    """Compilation of the first program had begun."""
    left = await asking.asked("left", **SLOW)
    shape = _shape(asking, "32x16xNone,plain")
    [step_kind] = shape.step_kinds.values()
    await until(lambda: step_kind.programs[step_kind.smallest].running())
    await leave(left)
    assert list(shape.step_kinds.values()) in ([step_kind], [])
    gates.compile_gate.set()
    await asking.make("again", **SLOW)
    [step_kind] = _shape(asking, shape.bucket).step_kinds.values()
    assert [batch_layout.size for batch_layout in step_kind.programs] == [1, 2, 4]


async def test_image_is_charged_only_for_its_own_compilation(
    gates: TwoGates, asking: Asking
) -> None:
    """A third image waits for the first image's programs while the second image's are the
    newest."""
    first = await asking.asked("first", **SLOW)
    second = await asking.asked("second", phase="slower")
    third = asking.make("third", **SLOW)
    await until(lambda: len(_shape(asking, "32x16xNone,plain").awaited) == 3)
    gates.compile_gate.set()
    await asyncio.gather(first, third)
    assert asking.owed["first"].waited_s is not None
    assert asking.owed["second"].waited_s is None, "it still waits"
    gates.second_gate.set()
    await second
    assert asking.owed["second"].waited_s is not None


@pytest.fixture
async def sharing(layout: Layout) -> AsyncIterator[Asking]:
    toy = SharingToy()
    engine = Engine(toy, layout, slots=4, batching=fast(4, (1, 2), False))
    yield Asking(engine)
    toy.compile_gate.set()
    engine.close()


def _of_seed(sharing: Asking, seed: int) -> Any:
    return _shape(sharing, f"32x16xNone,plain,{seed}")


async def test_steps_are_compiled_once_for_all_sizes_of_a_bucket(sharing: Asking) -> None:
    """The step times of both sizes are measured together."""
    await sharing.make("first", seed=1)
    await sharing.make("second", seed=2)
    first, second = (_of_seed(sharing, seed) for seed in (1, 2))
    assert first.step_kinds == second.step_kinds and first.decode is not second.decode
    [step_kind] = first.step_kinds.values()
    assert step_kind.times.steps == 8
    steps = {item for future in step_kind.programs.values() for item in [future]}
    assert not steps & {*sharing.owed["second"].programs}


async def test_steps_that_another_size_waits_for_are_compiled(sharing: Asking) -> None:
    toy: Any = sharing.engine.pipeline
    owner = await sharing.asked("owner", seed=1, **SLOW)
    other = await sharing.asked("other", seed=2, **SLOW)
    await until(lambda: bool(_of_seed(sharing, 2).awaited))
    await leave(owner)
    [step_kind] = _of_seed(sharing, 2).step_kinds.values()
    assert not step_kind.is_broken
    toy.compile_gate.set()
    assert (await other).steps == 4


async def test_abandoned_steps_are_compiled_again_on_demand(sharing: Asking) -> None:
    toy: Any = sharing.engine.pipeline
    for name, seed in (("owner", 1), ("other", 2)):
        await sharing.asked(name, seed=seed, phase="double")
    busy = [await sharing.asked(f"{seed}", seed=seed, **SLOW) for seed in (3, 4)]
    left = [await sharing.asked(f"{seed}", seed=seed, phase="told") for seed in (5, 6)]
    for task in left:
        await leave(task)
    toy.compile_gate.set()
    await asyncio.gather(*busy)
    assert (await sharing.make("again", seed=6, phase="told")).steps == 4


async def test_steps_that_did_not_compile_are_not_shared(sharing: Asking) -> None:
    with pytest.raises(GenerationFailed):
        await sharing.make("first", seed=1, phase="flawed")
    assert (await sharing.make("second", seed=2, phase="flawed")).steps == 4


def _shape(asking: Asking, bucket: str) -> Any:
    return asking.engine.programs._buckets[bucket]
