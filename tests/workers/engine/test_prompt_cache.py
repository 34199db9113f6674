"""Reuse of encoded prompts: how often a text encoder runs, whose encodings are reused, and that no
image changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import jax
import numpy as np
import pytest

from models.interface.pipeline import PreparedRow, PyTree
from models.parallel.axis_rules import Layout
from models.spec.lora import RequestedLora, ScaleInterval
from tests.workers.polling import DEADLINE_S
from tests.workers.toy import DIM, ToyPipeline
from workers.engine.engine import Engine
from workers.engine.prompt_cache import PromptCache, PromptLookup
from workers.programs import prompt_part
from workers.programs.compiler import Compiler
from workers.programs.prompt_part import PromptPart

ROW_BYTES = 4 * DIM
"""Size of an encoded prompt of the toy."""


class CountingToy(ToyPipeline):
    """Toy that counts the runs of its text encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def count(self, text: np.ndarray) -> np.ndarray:
        self.runs += 1
        return np.asarray(text)

    def encode(self, weights: PyTree, inputs: Mapping[str, jax.Array]) -> PyTree:
        text = jax.pure_callback(self.count, jax.typeof(inputs["text"]), inputs["text"])
        return super().encode(weights, {**inputs, "text": text})


@pytest.fixture
def toy() -> CountingToy:
    return CountingToy()


def engine_of(toy: CountingToy, layout: Layout, size: int) -> Engine:
    return Engine(toy, layout, 4, prompt_cache_bytes=size)


@pytest.fixture
async def engine(toy: CountingToy, layout: Layout) -> AsyncIterator[Engine]:
    engine = engine_of(toy, layout, 2 * ROW_BYTES)
    yield engine
    engine.close()


async def make(engine: Engine, tenant: str = "acme", **fields: Any) -> bytes:
    async with asyncio.timeout(DEADLINE_S):
        output = await engine.generate({"prompt": "a hat", **fields}, {}, tenant=tenant)
    return output.pixels.tobytes()


async def test_images_of_one_prompt_are_encoded_once(
    engine: Engine, toy: CountingToy, layout: Layout
) -> None:
    """The pixels are those of an engine that reuses nothing."""
    pictures = await asyncio.gather(*(make(engine, seed=seed) for seed in range(4)))
    assert toy.runs == 1
    other = engine_of(toy, layout, 0)
    assert pictures == [await make(other, seed=seed) for seed in range(4)]
    other.close()
    assert toy.runs == 5
    assert len({*pictures}) == 4


async def test_other_prompts_are_encoded(engine: Engine, toy: CountingToy) -> None:
    pictures = [await make(engine, prompt=prompt) for prompt in ("a hat", "a cat", "a hat")]
    assert toy.runs == 2
    assert pictures[0] == pictures[2] != pictures[1]


async def test_tenants_share_nothing(engine: Engine, toy: CountingToy) -> None:
    pictures = [await make(engine, tenant) for tenant in ("acme", "zoo", "acme", "zoo")]
    assert toy.runs == 2
    assert len({*pictures}) == 1


async def test_the_least_recently_used_is_evicted(engine: Engine, toy: CountingToy) -> None:
    for prompt in ("one", "two", "one", "three", "one"):
        await make(engine, prompt=prompt)
    assert toy.runs == 3
    await make(engine, prompt="two")
    assert toy.runs == 4


async def test_encodings_leave_with_the_weights(engine: Engine, toy: CountingToy) -> None:
    await make(engine)
    await engine.offload_weights()
    await engine.reload_weights()
    await make(engine)
    assert toy.runs == 2


async def test_recorded_times_exclude_cached_encodings(engine: Engine) -> None:
    for seed in range(3):
        await make(engine, seed=seed)
    programs = engine.programs.of(engine.pipeline.prepare({}, {}))
    assert len(programs.encode_times._seconds) == 1


async def test_trials_encode_their_prompt(engine: Engine, toy: CountingToy) -> None:
    """A warm-up measures the encoder although it repeats one prompt."""
    for _ in range(2):
        await engine.readiness.try_out({}, 1)
    assert toy.runs == 2


def part_of(toy: ToyPipeline, layout: Layout) -> PromptPart:
    inputs = toy.prepare({}, {}).inputs
    return prompt_part.prompt_part(Compiler(toy, layout).tracer.encode(inputs), inputs)


def test_the_part_without_noise_is_reusable(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert part_of(ToyPipeline(), layout) == PromptPart(("prompt",), ("text",))
    monkeypatch.setattr(prompt_part, "MAX_INPUT_BYTES", 4 * DIM - 1)
    assert part_of(ToyPipeline(), layout) == PromptPart((), ())


def test_noise_in_the_text_is_never_reused(layout: Layout) -> None:
    class NoisyText(ToyPipeline):
        def encode(self, weights: PyTree, inputs: Mapping[str, jax.Array]) -> PyTree:
            row = super().encode(weights, inputs)
            return {**row, "prompt": row["prompt"] + inputs["noise"][0]}

    assert part_of(NoisyText(), layout) == PromptPart((), ())


def lookup(cache: PromptCache, digest: str, scale: float) -> PromptLookup:
    """Lookup of a prompt that an adapter in the same page of the banks changes."""
    scales = (ScaleInterval(start=0, stop=1, scale=scale),)
    adapter = RequestedLora(name="ink", digest=digest, pages=1, networks=("te",), scales=scales)
    row = PreparedRow("", {"adapter_pages": np.zeros(1)}, (), 8, 8, 0, adapters=(adapter,))
    return PromptLookup(cache, "acme", row)


def test_adapters_of_text_encoders_are_distinguished() -> None:
    cache, device = PromptCache("toy", 100), jax.devices()[0]
    for digest, scale, is_hit in [
        ("aa", 1.0, False),
        ("aa", 1.0, True),
        ("bb", 1.0, False),
        ("aa", 0.5, False),
    ]:
        image = lookup(cache, digest, scale)
        image(image._prepared.inputs, lambda: jax.device_put(np.ones(1, np.float32), device))
        assert image.is_hit == is_hit
