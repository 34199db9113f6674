"""Specs of published LTX-2 checkpoints, and preprocessing of first frames as in diffusers."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from diffusers.pipelines.ltx2.utils import apply_image_conditioning_crf
from PIL import Image

from models import published, registry
from models.checkpoint.folder import CheckpointError
from models.loading.sources import SHAPES
from models.ltx.first_frame import compressed, read_first_frame
from models.spec.model_spec import ModelSpec
from models.vae.config import Tiling


def spec(name: str, folder: Path) -> ModelSpec:
    published.write(name, folder)
    return registry.load(name, str(folder), "bfloat16", {}, reader=SHAPES).spec


def test_defaults_are_diffusers(tmp_path: Path) -> None:
    published_spec = spec("ltx-2.3", tmp_path)
    size = (published_spec.defaults[name] for name in ("width", "height", "num_frames", "fps"))
    assert (*size,) == (768, 512, 121, 24)
    scales = {name: value for name, value in published_spec.defaults.items() if "scale" in name}
    assert scales == {
        "guidance_scale": 3.0,
        "audio_guidance_scale": 7.0,
        "stg_scale": 1.0,
        "modality_scale": 3.0,
        "guidance_rescale": 0.7,
    }
    assert published_spec.sound_hz == 48000
    limits = published_spec.limits
    assert (limits.size_multiple_px, limits.frames_multiple, limits.min_frames) == (32, 8, 9)
    assert (limits.max_side_px, limits.max_frames, limits.min_steps) == (2048, 481, 2)
    assert (limits.max_sequence_length, limits.sequence_length_multiple) == (1024, 128)
    assert limits.max_pixels >= 1920 * 1088


def test_ltx_2_has_no_guidance_of_blocks(tmp_path: Path) -> None:
    assert "stg_scale" not in spec("ltx-2", tmp_path).fields


def test_tiles_are_whole_latents(tmp_path: Path) -> None:
    published.write("ltx-2", tmp_path)
    with pytest.raises(CheckpointError, match="multiples of 32"):
        registry.load(
            "x", str(tmp_path), "bfloat16", {}, reader=SHAPES, vae_tiling=Tiling(256, 200)
        )


def test_another_text_encoder_is_refused(tmp_path: Path) -> None:
    """Gemma 4 is the text encoder of LTX-2.5."""
    published.write("ltx-2.3", tmp_path)
    file = tmp_path / "text_encoder" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_type": "gemma4"}))
    with pytest.raises(CheckpointError, match="model_type must be gemma3, not 'gemma4'"):
        registry.load("x", str(tmp_path), "bfloat16", {}, reader=SHAPES)


@pytest.mark.parametrize("size", [(64, 40), (61, 33)])
def test_a_first_frame_is_compressed_as_diffusers_does(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize(size)
    expected = apply_image_conditioning_crf(np.asarray(image), 33)
    assert (compressed(np.asarray(image)) == expected).all()
    assert expected.shape[0] % 2 == expected.shape[1] % 2 == 0
    file = io.BytesIO()
    image.save(file, "png")
    read = read_first_frame(file.getvalue(), 32, 32)
    assert read.shape == (32, 32, 3) and np.abs(read).max() <= 1
