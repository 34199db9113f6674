"""SigLIP's vision tower and preprocessing compared with transformers, random weights, odd sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx
from PIL import Image
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.vision.preprocess import SIGLIP, ClipPreprocessor
from models.vision.siglip import RENAMES, SiglipVisionConfig, SiglipVisionModel
from models.weights.loader import load
from tests.parity.tiny import randomize

TOLERANCE = 1e-5
"""Tolerance relative to the largest value. Float32 rounds at 6e-8, and sums differ in order."""
VARIANTS: dict[str, dict[str, Any]] = {
    "patches that do not divide": {
        "hidden_size": 30,
        "intermediate_size": 44,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "image_size": 23,
        "patch_size": 5,
    },
    "odd": {
        "hidden_size": 24,
        "intermediate_size": 20,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 24,
        "patch_size": 8,
        "layer_norm_eps": 1e-2,
        "hidden_act": "gelu",
        "vision_use_head": False,
    },
}

run = nnx.jit(lambda model, pixels: model(pixels))


def reference(**config: Any) -> Any:
    return randomize(transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**config)), 6)


def run_atelier(folder: Path) -> SiglipVisionModel:
    config = SiglipVisionConfig.from_dict(read_config(folder.parent, folder.name))
    return load(abstract_module(SiglipVisionModel, config), folder, RENAMES, dtype=jnp.float32)


def pixels(side: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, side, side, 3), dtype=np.float32)


def expected(tower: Any, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return tower(torch.tensor(images).permute(0, 3, 1, 2)).last_hidden_state.numpy()


def gap(output: jax.Array, reference_output: np.ndarray) -> float:
    assert output.shape == reference_output.shape
    largest = float(np.abs(reference_output).max())
    assert largest > 0.1  # a reference of zeros would accept anything
    return float(np.abs(np.asarray(output) - reference_output).max()) / largest


@pytest.mark.parametrize("variant", VARIANTS)
def test_tower(variant: str, tmp_path: Path) -> None:
    original = reference(**VARIANTS[variant])
    original.save_pretrained(tmp_path)
    images = pixels(original.config.image_size)
    assert gap(run(run_atelier(tmp_path), images), expected(original, images)) < TOLERANCE


def test_the_tower_of_a_whole_siglip(tmp_path: Path) -> None:
    """The authors' own repository has both towers in one file and config."""
    vision = VARIANTS["patches that do not divide"]
    text = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.SiglipConfig(
        vision_config=vision, text_config={**text, "num_attention_heads": 2, "bos_token_id": 1,
                                           "eos_token_id": 2},
    )  # fmt: skip
    siglip = randomize(transformers.SiglipModel(config), seed=6)
    siglip.save_pretrained(tmp_path)
    images = pixels(23)
    assert (
        gap(run(run_atelier(tmp_path), images), expected(siglip.vision_model, images)) < TOLERANCE
    )


def without_positions(tower: SiglipVisionModel) -> None:
    tower.position_embedding.embedding[...] *= 0


def without_patch_bias(tower: SiglipVisionModel) -> None:
    tower.patch_embedding.bias[...] *= 0


def without_last_norm(tower: SiglipVisionModel) -> None:
    tower.norm_out = lambda x: x


@pytest.mark.parametrize("mistake", [without_positions, without_patch_bias, without_last_norm])
def test_wrong_parameters_break_parity(
    mistake: Callable[[SiglipVisionModel], None], tmp_path: Path
) -> None:
    original = reference(**VARIANTS["odd"])
    original.save_pretrained(tmp_path)
    tower, images = run_atelier(tmp_path), pixels(24)
    mistake(tower)
    assert gap(tower(jnp.asarray(images)), expected(original, images)) > 1e3 * TOLERANCE


def test_pixels_of_another_size_are_refused(tmp_path: Path) -> None:
    reference(**VARIANTS["odd"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pixels are 23 x 23, but this SigLIP sees 24 x 24"):
        run_atelier(tmp_path)(jnp.asarray(pixels(23)))


def test_a_config_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="SigLIP hidden_size 30 must be a multiple of"):
        SiglipVisionConfig(hidden_size=30, num_attention_heads=4)
    with pytest.raises(ValueError, match="patch_size 9 is larger than the image_size 8"):
        SiglipVisionConfig(image_size=8, patch_size=9)


SETTINGS: dict[str, dict[str, Any]] = {
    "its defaults": {},
    "as published": {"size": {"height": 384, "width": 384}, "resample": 3},
    "small, bilinear": {
        "size": {"height": 41, "width": 28},
        "resample": 2,
        "image_mean": [0.4] * 3,
    },
}


@pytest.mark.parametrize("size", [(61, 45), (300, 427)], ids=str)
@pytest.mark.parametrize("settings", SETTINGS)
def test_preprocessing(tmp_path: Path, settings: str, size: tuple[int, int]) -> None:
    """Pixels are exactly equal, with the preprocessor's file that transformers writes."""
    noise = np.random.default_rng(3).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    processor = SiglipImageProcessorPil(**SETTINGS[settings])
    processor.save_pretrained(tmp_path)
    expected_pixels = processor(images=image, return_tensors="np")["pixel_values"][0]
    output = ClipPreprocessor.read(tmp_path, SIGLIP)(image)
    np.testing.assert_array_equal(output, expected_pixels.transpose(1, 2, 0))
