"""Upscalers with every family: images are upscaled, regardless of the rest of the batch."""

from __future__ import annotations

import asyncio
from pathlib import Path

import jax
import numpy as np
import pytest

from models.parallel.axis_rules import Layout
from models.upscale.load import LoadedUpscaler
from service.settings.models import ModelSettings, UpscalerSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from tests.families.suite import EVERY, loaded
from tests.parity.torch_rrdbnet import net, write
from tests.workers.toy import SPEC
from tests.workers.upscaler import CONFIG
from workers.engine.engine import Engine
from workers.engine.upscaling import TilePrograms, Upscaling
from workers.loading.upscalers import load_upscalers, upscalers_for


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].least(tmp_path_factory.mktemp("least") / family)


def settings(name: str, folder: Path, **upscaler: object) -> Settings:
    file = write(net(CONFIG), folder / "twice.safetensors")
    entry = UpscalerSettings.model_validate({"source": str(file), "tile": 32, **upscaler})
    models = {name: ModelSettings(source=str(folder))}
    return Settings(models=models, upscalers={"twice": entry})


def drawn_larger(upscaler: LoadedUpscaler, image: np.ndarray, scale: float) -> np.ndarray:
    upscaling = Upscaling(TilePrograms("", upscaler), image, scale)
    for work in upscaling.tile_tasks():
        work()
    return upscaling.image()


async def test_image_is_upscaled(family: str, folder: Path, layout: Layout) -> None:
    """The bytes are the same alone and in a batch. Video models have no upscaler."""
    pipeline = loaded(family, folder, "float32")
    upscalers = load_upscalers(settings(family, folder), pipeline, jax.devices()[0])
    if any(task.endswith("-to-video") for task in pipeline.spec.tasks):
        assert not upscalers and "upscale" not in pipeline.spec.fields
        return
    assert pipeline.spec.upscalers == {"twice": upscalers["twice"].spec}
    assert "upscale" in pipeline.spec.fields
    entry = EVERY[family]
    plain = {**pipeline.spec.defaults, **entry.smallest_request, "seed": 1}
    engine = Engine(pipeline, layout, slots=3, upscalers=upscalers)
    requests = [{**plain, "upscale": {"name": "twice", "scale": scale}} for scale in (2, 1.5)]
    try:
        together = await asyncio.gather(
            *(engine.generate(fields, entry.images) for fields in (plain, *requests))
        )
        alone = await engine.generate(requests[0], entry.images)
    finally:
        engine.close()
    image, twice, less = (output.pixels for output in together)
    assert np.array_equal(twice, drawn_larger(upscalers["twice"], image, 2))
    assert twice.shape == (2 * image.shape[0], 2 * image.shape[1], 3)
    assert less.shape == (image.shape[0] * 3 // 2, image.shape[1] * 3 // 2, 3)
    assert np.array_equal(alone.pixels, twice)


def test_models_are_named(tmp_path: Path) -> None:
    for_all, for_one = settings("toy", tmp_path), settings("toy", tmp_path, models=["toy"])
    other = SPEC.model_copy(update={"name": "other"})
    assert upscalers_for(for_all, SPEC) and upscalers_for(for_all, other)
    assert upscalers_for(for_one, SPEC) and not upscalers_for(for_one, other)
    derived = ModelSettings(base="toy", lora="ink")
    of_derived = settings("toy", tmp_path).model_copy(
        update={
            "models": {**for_all.models, "inked": derived},
            "upscalers": {"twice": UpscalerSettings(source="x", models=("inked",))},
        }
    )
    assert upscalers_for(of_derived, SPEC) and not upscalers_for(of_derived, other)
    with pytest.raises(ConfigError, match=r"upscalers\.twice\.models: add \[models\.gone\]"):
        upscalers_for(settings("toy", tmp_path, models=["gone"]), SPEC)
