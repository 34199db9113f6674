"""A fine-tune as it is shared, one file with the original keys, from the command line to diffusers'
own image over HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from PIL import Image

from tests import coarse
from tests.e2e.system import DEADLINE_S, System
from tests.models.sdxl.original_writer import write_original
from tests.parity.tiny_sdxl import make_sdxl

PROMPT, SEED = "a red circle", 7
FIELDS = {"width": 48, "height": 32, "num_inference_steps": 3, "guidance_scale": 4.0}
MOST_LEVELS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sdxl(tmp_path_factory.mktemp("checkpoint") / "tune")


@pytest.fixture(scope="module")
def system(folder: Path, state: Path) -> Iterator[System]:
    """Serves the file, which finds the folder of its name beside it for what it lacks."""
    file = write_original(folder, folder.with_suffix(".safetensors"))
    pools = json.dumps({"tune": {"model": "tune", "slots": 1}})
    given = {"ATELIER_POOLS": pools, "XLA_FLAGS": coarse.FLAGS}
    running = System(state, "--model", f"tune={file}", "--dtype", "float32", **given)
    yield running
    running.close()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_single_file_draws_what_diffusers_draws(system: System, folder: Path) -> None:
    pipeline = StableDiffusionXLPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(SEED)
    expected = pipeline(PROMPT, generator=generator, output_type="np", **FIELDS).images[0]

    answer = httpx.post(
        f"{system.url}/v1/generate",
        json={"model": "tune", "prompt": PROMPT, "seed": SEED, **FIELDS},
        headers={"Accept": "image/png"},
        timeout=DEADLINE_S,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    with Image.open(io.BytesIO(answer.content)) as picture:
        drawn = np.asarray(picture.convert("RGB"), np.int16)
    assert np.abs(drawn - np.rint(255 * expected)).max() <= MOST_LEVELS
