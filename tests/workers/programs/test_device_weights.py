"""Two experts with device memory for one: their places and their swaps."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from prometheus_client import REGISTRY

from models.interface.pipeline import generate
from models.parallel.axis_rules import Layout
from tests.workers.experts import SIDE, TwoExperts, fields
from tests.workers.polling import DEADLINE_S, until
from workers.engine.engine import Engine
from workers.programs.device_weights import Weights


@pytest.fixture
def experts() -> TwoExperts:
    gc.collect()  # arrays of earlier engines
    return TwoExperts()


@pytest.fixture
async def engine(experts: TwoExperts, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(experts, layout, slots=4)
    yield engine
    engine.close()


def swaps() -> float:
    return REGISTRY.get_sample_value("atelier_expert_swaps_total", {"model": "toy"}) or 0


def on_device() -> Iterator[float]:
    """Yield the gain of each expert whose matrix is on the device."""
    for array in jax.live_arrays():
        if array.shape == (SIDE, SIDE):
            yield float(np.asarray(array)[0, 0])


def test_single_expert_is_resident(experts: TwoExperts, layout: Layout) -> None:
    places = [NamedSharding(layout.mesh, PartitionSpec())] * len(jax.tree.leaves(experts.weights))
    weights = Weights("toy", experts.weights, places, [False] * len(places))
    assert [weights.is_swapped(name) for name in ("high", "low", "in", None)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert weights.load_expert(None) is weights.common
    assert list(on_device()) == []
    before = swaps()
    for name, gain in (("high", 1), ("low", -3), ("low", -3), ("high", 1)):
        tree = weights.unflatten(weights.load_expert(name))
        assert weights.resident == name
        assert list(on_device()) == [gain]
        assert isinstance(tree[name].gain, jax.Array)
        del tree
    assert swaps() - before == 3
    assert isinstance(weights.unflatten(weights.common)["high"].gain, np.ndarray)


async def test_request_swaps_once_and_matches_the_plain_loop(
    engine: Engine, experts: TwoExperts
) -> None:
    experts.gate.close()
    before = swaps()
    task = asyncio.create_task(engine.generate(fields(6), {}))
    for gain in (1, 1, 1, -3, -3, -3):
        await asyncio.to_thread(experts.gate.wait)
        assert list(on_device()) == [gain]
        experts.gate.open(1)
    picture = await task
    assert swaps() - before == 2, "one to begin with, one for the second half"
    experts.gate.open()
    expected = generate(experts, fields(6), {}).astype(int)
    assert np.abs(picture.pixels - expected).max() <= 1  # as in test_engine
    plain = generate(experts, {**fields(6), "phase": "gated", "second_phase": "gated"}, {})
    assert np.abs(expected - plain).mean() > 10, "the experts do nothing"


async def test_concurrent_requests_share_swaps(engine: Engine, experts: TwoExperts) -> None:
    """All four images are admitted before the first step is done."""
    experts.gate.close()
    before = swaps()
    requests = [fields(4 + 2 * seed, seed) for seed in range(4)]
    async with asyncio.timeout(DEADLINE_S):
        outputs = asyncio.gather(*(engine.generate(request, {}) for request in requests))
        await until(lambda: engine.step_loop.load == 4)
        experts.gate.open()
        pictures = await outputs
    assert swaps() - before == 2
    for picture, request in zip(pictures, requests, strict=True):
        expected = generate(experts, request, {}).astype(int)
        assert np.abs(picture.pixels - expected).max() <= 1  # as in test_engine


async def test_other_programs_need_no_expert(engine: Engine) -> None:
    before = swaps()
    async with asyncio.timeout(DEADLINE_S):
        await engine.generate({"num_inference_steps": 3}, {})
    assert swaps() == before
    assert list(on_device()) == []
