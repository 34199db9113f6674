"""A single-file fine-tune with the original keys generates diffusers' image over HTTP."""

from __future__ import annotations

import io

import httpx
import numpy as np
import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from PIL import Image

from tests.e2e.conftest import Files
from tests.e2e.endpoints import END_S
from tests.e2e.system import System

pytestmark = pytest.mark.timeout(900)  # seconds, for the system's start

PROMPT, SEED = "a red circle", 7
FIELDS = {"width": 48, "height": 32, "num_inference_steps": 3, "guidance_scale": 4.0}
MAX_LEVELS = 2


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_single_file_matches_diffusers(system: System, folders: Files) -> None:
    pipeline = StableDiffusionXLPipeline.from_pretrained(folders["tune"])
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(SEED)
    expected = pipeline(PROMPT, generator=generator, output_type="np", **FIELDS).images[0]

    response = httpx.post(
        f"{system.url}/v1/generate",
        json={"model": "tune", "prompt": PROMPT, "seed": SEED, **FIELDS},
        headers={"Accept": "image/png"},
        timeout=END_S,
        trust_env=False,
    )
    assert response.status_code == 200, response.text
    with Image.open(io.BytesIO(response.content)) as image:
        drawn = np.asarray(image.convert("RGB"), np.int16)
    assert np.abs(drawn - np.rint(255 * expected)).max() <= MAX_LEVELS
