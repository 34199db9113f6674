"""Demo models without their weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import models.demo
from workers.plan.model import sketch_of
from workers.plan.sketch import Sketch

DEMO = Path(models.demo.__file__).parent


@pytest.fixture(scope="session")
def flux() -> Sketch:
    """Of the demo's Flux at its own size, with a negative prompt: two passes a step."""
    return sketch_of(str(DEMO / "flux"), "float32", {})


@pytest.fixture(scope="session")
def unguided() -> Sketch:
    return sketch_of(str(DEMO / "wan"), "float32", {"guidance_scale": 1.0})


SMALLER = {
    "transformer": {"num_layers": 1, "num_single_layers": 1},
    "text_encoder": {"num_hidden_layers": 2},
    "text_encoder_2": {"num_layers": 2},
    "vae": {
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "up_block_types": ["UpDecoderBlock2D"] * 2,
        "block_out_channels": [8, 16],
        "mid_block_add_attention": False,
    },
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's Flux, smaller still: configs alone, that a TPU's compiler is soon done with."""
    folder = tmp_path_factory.mktemp("plan") / "tiny"
    configs = shutil.ignore_patterns("*.safetensors", "tokenizer*")
    shutil.copytree(DEMO / "flux", folder, ignore=configs)
    for part, changes in SMALLER.items():
        file = folder / part / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder
