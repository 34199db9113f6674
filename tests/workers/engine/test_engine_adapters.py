"""Adapters while weights are not on the device: swapped experts, encoders in host memory.

The images must equal those of weights that stay on the device.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from models import registry
from models.interface.pipeline import Fields
from models.parallel.axis_rules import Layout
from models.spec.lora import RequestedLora
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from tests.families.adapters import Loras, Model, asking
from tests.families.suite import SUITE
from tests.families.suite.entry import T5
from workers.engine.engine import Engine
from workers.engine.errors import GenerationFailed
from workers.loading.model import load

CLOSE = 2
"""Levels of 255: programs of weights in other places sum in another order."""
SHOWS = 1.0
"""Minimum mean difference, in levels of 255, that an adapter must cause."""


async def pixels(engine: Engine, *requests: Fields) -> list[np.ndarray]:
    outputs = await asyncio.gather(*(engine.generate(fields, {}) for fields in requests))
    return [output.pixels.astype(int) for output in outputs]


def assert_close(images: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for image, other in zip(images, expected, strict=True):
        assert np.abs(image - other).max() <= CLOSE
    for image in images[1:]:
        assert np.abs(image - images[0]).mean() > SHOWS, "an adapter does not show"


async def test_experts_alternate_with_adapters_of_either_and_both(
    layout: Layout, tmp_path: Path
) -> None:
    """Several videos run at once, and their adapters are loaded while an expert is resident."""
    from tests.parity.tiny_wan import make_wan

    layer = {"num_layers": 1}
    experts = {"transformer": layer, "transformer_2": layer, "boundary_ratio": 0.875}
    folder = make_wan(tmp_path / "wan", t5=T5, **experts)
    fields = SUITE["wan"].smallest_request
    pipelines = [
        registry.load("wan", str(folder), "float32", {}, swap_experts=swap)
        for swap in (False, True)
    ]
    loras = Loras(pipelines[0], tmp_path)
    plain, swapped = (Model(item, loras, fields) for item in pipelines)
    high, low = loras.make("high", 8, expert="high"), loras.make("low", 8, expert="low")
    other = loras.make("other", 8, expert="low")
    requests = [
        asking(fields, *adapters) for adapters in ((), (high,), (low,), (high, low), (other,))
    ]
    with plain.engine(3, layout) as engine:
        expected = await pixels(engine, *requests)
    with swapped.engine(2, layout) as engine:
        images = await pixels(engine, *requests)
        again = [(await pixels(engine, fields))[0] for fields in requests[::-1]]
    assert_close(images, expected)
    assert [item.tobytes() for item in images] == [item.tobytes() for item in again[::-1]]


async def test_encoders_in_host_memory_take_adapters(tmp_path: Path) -> None:
    """Encoder layers are copied to the device one at a time; the adapter banks are there."""
    folder = SUITE["flux"].least(tmp_path / "flux")
    fields = SUITE["flux"].smallest_request

    async def drawn(**settings: Any) -> list[np.ndarray]:
        model = ModelSettings(source=str(folder), dtype="float32", lora_pages=2, **settings)
        pool = PoolSettings(model="flux", mesh={})
        pipeline, opened = load("flux", pool, model, jax.devices()[:1])
        kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(pipeline.weights.clip)}
        assert ("pinned_host" in kinds) == ("encoders_on_host" in settings)
        loras = Loras(pipeline, tmp_path)
        adapters = loras.make("text", 16, only=["clip"]), loras.make("both", 4)
        engine = Engine(pipeline, opened.layout, 2, lora_files=loras.find)
        try:
            requests = [asking(fields), *(asking(fields, lora) for lora in adapters)]
            return await pixels(engine, *requests)
        finally:
            engine.close()

    assert_close(await drawn(encoders_on_host=True), await drawn())


async def test_missing_or_changed_adapter_fails_only_its_image(
    layout: Layout, tmp_path: Path
) -> None:
    """The pages of a failed adapter become free for others."""
    folder = SUITE["flux"].least(tmp_path / "flux")
    plain = registry.load("flux", str(folder), "float32", {})
    loras = Loras(plain, tmp_path)
    good, gone, larger = loras.make("good", 16), loras.make("gone", 16), loras.make("larger", 40)
    remove(loras, gone)
    changed = larger.model_copy(update={"pages": 1})
    model = Model(plain, loras, SUITE["flux"].smallest_request)
    with model.engine(1, layout) as engine:
        outputs = await asyncio.gather(
            *(engine.generate(asking(model.fields, lora), {}) for lora in (good, gone, changed)),
            return_exceptions=True,
        )
        for failed in outputs[1:]:
            assert isinstance(failed, GenerationFailed) and failed.error.code == "lora_gone"
        again = await engine.generate(asking(model.fields, good), {})
        with pytest.raises(GenerationFailed, match="lora_pages"):
            await engine.generate(asking(model.fields, larger), {})
    assert not isinstance(outputs[0], BaseException)
    assert (again.pixels == outputs[0].pixels).all()


def remove(loras: Loras, lora: RequestedLora) -> None:
    Path(loras.paths[lora.digest]).unlink()
