"""Upscaling of an image of a slice of two processes, by its leader alone."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from models.upscale.load import load_upscaler
from tests.families.test_upscaling import drawn_larger
from tests.parity.torch_rrdbnet import net, write
from tests.workers.multihost.test_generation import started
from tests.workers.multihost.tiny import CFG, asked, made
from tests.workers.upscaler import CONFIG

TILE = 32


@pytest.mark.timeout(600)
def test_followers_do_not_participate_in_upscaling(tmp_path: Path) -> None:
    checkpoint = made("sdxl", tmp_path / "checkpoint")
    file = write(net(CONFIG), tmp_path / "twice.safetensors")
    larger = {"upscale": {"name": "twice", "scale": 2}}
    case = {
        "model": {"source": str(checkpoint), "dtype": "float32"},
        "pool": {"model": "sdxl", "slots": 1, "mesh": CFG},
        "requests": [asked("sdxl", more) for more in ({}, larger, {})],
        "upscalers": {"twice": {"source": str(file), "tile": TILE}},
    }
    (tmp_path / "cases.json").write_text(json.dumps({"sdxl": case}))
    for end in started(tmp_path, hosts=2, devices=2):
        assert end == 0, "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    plain, upscaled, again = np.load(tmp_path / "sdxl.npz").values()
    upscaler = load_upscaler(file, "float32", TILE, jax.devices()[0])
    assert np.array_equal(plain, again)
    assert np.array_equal(upscaled, drawn_larger(upscaler, plain, 2))
