"""Hires fix by a network that enlarges a model's latents: two passes, compared with two
requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import registry
from models.interface.image_start import latents_file
from models.parallel.axis_rules import Layout
from models.spec.hires import with_defaults
from tests.families.suite import EVERY, loaded
from tests.families.suite.entry import image_file
from tests.workers.observing import Observing
from workers.engine.engine import Engine
from workers.engine.generation import EngineOutput
from workers.engine.passes import prepared_passes
from workers.engine.row import Row
from workers.engine.snapshot import RowSnapshot
from workers.plan.estimate import estimate
from workers.plan.model import sketch_of
from workers.slice.chips import CHIPS
from workers.slice.mesh_shape import MeshShape

WITH = frozenset(
    family.name for family in registry.FAMILIES if "latent_upsampler" in family.options
)
"""Models with a network that enlarges latents."""
IMAGES: Mapping[str, Mapping[str, bytes]] = {"text": {}, "image": {"image": image_file(4)}}


@pytest.fixture(scope="module", params=sorted(WITH))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].least(tmp_path_factory.mktemp("least") / family)


@pytest.fixture
async def engine(family: str, folder: Path, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(loaded(family, folder, "float32"), layout, slots=4)
    yield engine
    engine.close()


def asked(family: str, engine: Engine) -> dict[str, Any]:
    spec = engine.pipeline.spec
    fields = {
        **spec.defaults,
        **EVERY[family].smallest_request,
        "num_inference_steps": 2,
        "seed": 1,
    }
    multiple = spec.limits.size_multiple_px
    return {**fields, "hires": with_defaults({}, fields, multiple, spec.enlargers)}


async def by_hand(
    engine: Engine, fields: dict[str, Any], images: Mapping[str, bytes]
) -> EngineOutput:
    """Generate both passes as two requests: pixels, and sound if there is any."""
    first, second = prepared_passes(engine.pipeline, fields, images)
    assert second is not None
    rows: list[Row] = []
    await engine.generate(first.fields, images, observer=Observing(rows.append))
    latents = np.asarray(engine.pipeline.spatial(rows[-1].verified_state))
    return await engine.generate(
        second.fields, {**images, second.begins_with: latents_file(latents)}
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("begun", IMAGES)
async def test_two_passes_by_the_models_own_upscaler(
    family: str, engine: Engine, begun: str
) -> None:
    """Images are the same as those of two requests, in a batch with plain requests, and resumed
    from snapshots."""
    fields, images = asked(family, engine), IMAGES[begun]
    plain = {name: value for name, value in fields.items() if name != "hires"}
    larger = {**plain, **{name: fields["hires"][name] for name in ("width", "height")}}
    snapshots: dict[int, RowSnapshot] = {}
    taking: list[asyncio.Task[None]] = []

    async def keep(row: Row) -> None:
        snapshot = await engine.take_snapshot(row)
        snapshots[snapshot.done] = snapshot

    def on_step(row: Row) -> None:
        taking.append(asyncio.ensure_future(keep(row)))

    result, alone, large = await asyncio.gather(
        engine.generate(fields, images, observer=Observing(on_step)),
        engine.generate(plain, images),
        engine.generate(larger, images),
    )
    await asyncio.gather(*taking)
    expected = await by_hand(engine, fields, images)
    assert np.array_equal(result.pixels, expected.pixels)
    assert result.sound is None or np.array_equal(result.sound, expected.sound)
    scale = fields["hires"]["width"] / fields["width"]
    assert result.pixels.shape[-2] == scale * alone.pixels.shape[-2]
    assert result.pixels.shape == large.pixels.shape
    assert not np.array_equal(result.pixels, large.pixels)
    first, steps = fields["num_inference_steps"], result.steps
    assert steps == first + len(_second(engine)["sigmas"])
    assert {1, first, first + 1} & snapshots.keys()
    for at in sorted({1, first, first + 1} & snapshots.keys()):
        resumed = await engine.generate(fields, images, begin=snapshots[at])
        assert np.array_equal(resumed.pixels, result.pixels), at
        assert result.sound is None or np.array_equal(resumed.sound, result.sound)
        assert resumed.claim_seconds < resumed.device_seconds
    broken = replace(
        snapshots[max(snapshots)], leaves={"['latents']": np.zeros((1, 1), np.float32)}
    )
    restarted = await engine.generate(fields, images, begin=broken)
    assert np.array_equal(restarted.pixels, result.pixels), "it begins with its first pass"


def _second(engine: Engine) -> Mapping[str, Any]:
    (enlarger,) = engine.pipeline.spec.enlargers.values()
    return enlarger.second


@pytest.mark.parametrize("name", sorted(EVERY.keys() - WITH))
def test_other_families_have_no_latent_upsampler(name: str, tmp_path: Path) -> None:
    spec = loaded(name, EVERY[name].least(tmp_path / name), "float32").spec
    assert not spec.enlargers


def test_its_second_pass_is_planned(family: str, folder: Path) -> None:
    """The plan of a request with a latent upscaler includes that network's weights, from shapes
    alone."""
    sketch = sketch_of(str(folder), "float32", {**EVERY[family].smallest_request, "hires": {}})
    assert sketch.second_pass is not None and sketch.second_pass.weights == sketch.weights
    networks = {weight.network for weight in sketch.second_pass.encode.weights}
    assert networks - {weight.network for weight in sketch.encode.weights}
    need, once = (
        estimate(item, MeshShape().over(1), CHIPS["v6e"]).memory["temporaries"]
        for item in (sketch, replace(sketch, second_pass=None))
    )
    assert need > once
