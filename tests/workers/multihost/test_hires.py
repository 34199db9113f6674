"""Both passes of hires fix on a slice of two processes, compared with one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from service.settings.models import ModelSettings
from service.settings.settings import Settings
from tests.families.suite import loaded
from tests.parity.torch_rrdbnet import net, write
from tests.workers.multihost.test_generation import started
from tests.workers.multihost.tiny import CFG, asked, assert_same, made
from tests.workers.upscaler import CONFIG
from workers.engine.engine import Engine
from workers.loading.upscalers import load_upscalers
from workers.slice.mesh import one_device

UPSCALERS = ("latent", "lanczos", "twice")


def with_hires(upscaler: str) -> dict[str, Any]:
    target = {"width": 48, "height": 72, "strength": 0.6, "num_inference_steps": 4}
    return asked("sdxl", {"hires": {**target, "upscaler": upscaler}})


def run(folder: Path) -> None:
    for end in started(folder, hosts=2, devices=2):
        assert end == 0, "\n".join(path.read_text() for path in folder.glob("*.log"))


@pytest.mark.timeout(900)
async def test_only_the_leader_upscales_between_passes(tmp_path: Path) -> None:
    """Followers have no upscaler: they only run the steps of both passes."""
    checkpoint = made("sdxl", tmp_path / "checkpoint")
    file = write(net(CONFIG), tmp_path / "twice.safetensors")
    requests = [with_hires(name) for name in UPSCALERS]
    upscalers = {"twice": {"source": str(file), "tile": 32}}
    model = {"source": str(checkpoint), "dtype": "float32"}
    pool = {"model": "sdxl", "slots": 1, "mesh": CFG}
    case = {"model": model, "pool": pool, "requests": requests, "upscalers": upscalers}
    (tmp_path / "cases.json").write_text(json.dumps({"sdxl": case}))
    run(tmp_path)
    pipeline = loaded("sdxl", checkpoint, "float32")
    settings = Settings(models={"sdxl": ModelSettings(**model)}, upscalers=upscalers)
    loaded_upscalers = load_upscalers(settings, pipeline, jax.devices()[0])
    engine = Engine(pipeline, one_device(jax.devices()[0]), 1, upscalers=loaded_upscalers)
    images = [*np.load(tmp_path / "sdxl.npz").values()]
    for pixels, request in zip(images, requests, strict=True):
        expected = await engine.generate({**pipeline.spec.defaults, **request}, {})
        assert pixels.shape == (72, 48, 3)
        assert_same(pixels, expected.pixels)
    engine.close()
    assert not np.array_equal(images[0], images[1]) and not np.array_equal(images[1], images[2])
