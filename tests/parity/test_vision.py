"""CLIP's vision tower and preprocessing compared with transformers, random weights, odd sizes."""

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
from safetensors.torch import load_file, save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.vision.clip import RENAMES, ClipVisionConfig, ClipVisionModel
from models.vision.preprocess import ClipPreprocessor
from models.weights.loader import load
from tests.parity.tiny import randomize

TOLERANCE = 1e-5
"""Tolerance relative to the largest value. Float32 rounds at 6e-8, and sums differ in order."""

CLIP = {
    "hidden_size": 30,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "image_size": 23,
    "patch_size": 5,
}

run = nnx.jit(lambda model, *inputs: model(*inputs))


def reference(**overrides: Any) -> Any:
    config = transformers.CLIPVisionConfig(**(CLIP | overrides))
    return randomize(transformers.CLIPVisionModel(config), seed=6)


def run_atelier(folder: Path) -> ClipVisionModel:
    config = ClipVisionConfig.from_dict(read_config(folder.parent, folder.name))
    abstract = abstract_module(ClipVisionModel, config)
    return load(abstract, folder, RENAMES, dtype=jnp.float32)


def pixels(side: int = 23, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, side, side, channels), dtype=np.float32)


def agree(output: jax.Array, reference: torch.Tensor) -> None:
    expected = reference.numpy()
    assert output.shape == expected.shape
    assert float(np.abs(expected).max()) > 0.1  # a reference of zeros would accept anything
    np.testing.assert_allclose(output, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


def assert_same_tower(folder: Path, original: Any, picture: np.ndarray) -> None:
    with torch.no_grad():
        expected = original(torch.tensor(picture).permute(0, 3, 1, 2), output_hidden_states=True)
    output = run(run_atelier(folder), picture)
    agree(output.last_hidden_state, expected.last_hidden_state)
    agree(output.pooled, expected.pooler_output)
    for hidden, expected_states in zip(output.hidden_states, expected.hidden_states, strict=True):
        agree(hidden, expected_states)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"hidden_act": "gelu", "layer_norm_eps": 1e-2},
        {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 24, "patch_size": 8},
        {"num_channels": 2},
    ],
    ids=str,
)
def test_tower(tmp_path: Path, overrides: dict[str, Any]) -> None:
    original = reference(**overrides)
    original.save_pretrained(tmp_path)
    config = original.config
    assert_same_tower(tmp_path, original, pixels(config.image_size, config.num_channels))


def old_names(key: str) -> str:
    """transformers 4 wrote a prefix before every key."""
    return key if key.startswith("vision_model.") else f"vision_model.{key}"


def new_names(key: str) -> str:
    return key.removeprefix("vision_model.")


@pytest.mark.parametrize("rename", [old_names, new_names])
def test_keys_with_and_without_prefix(tmp_path: Path, rename: Callable[[str], str]) -> None:
    original = reference()
    original.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    renamed = {rename(key): tensor for key, tensor in load_file(file).items()}
    positions = {rename("embeddings.position_ids"): torch.arange(17)[None]}
    save_file(renamed | positions, file)
    assert_same_tower(tmp_path, original, pixels())


def test_the_layer_before_the_last_is_not_the_last(tmp_path: Path) -> None:
    """Wan reads hidden_states[-2]. The next state would be far off."""
    original = reference()
    original.save_pretrained(tmp_path)
    hidden = run(run_atelier(tmp_path), pixels()).hidden_states
    assert np.abs(hidden[-1] - hidden[-2]).max() > 1e4 * TOLERANCE * np.abs(hidden[-2]).max()


def test_pixels_of_another_size_are_refused(tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pixels are 24 x 24, but this CLIP sees 23 x 23"):
        run(run_atelier(tmp_path), pixels(24))


def picture(width: int, height: int) -> Image.Image:
    noise = np.random.default_rng(width).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "small": {"size": {"shortest_edge": 31}, "crop_size": {"height": 31, "width": 31}},
    "numbers": {"size": 40, "crop_size": 33},
    "a crop larger than the image": {
        "size": {"shortest_edge": 20},
        "crop_size": {"height": 43, "width": 30},
    },
    "stretched, bilinear": {
        "size": {"height": 41, "width": 28},
        "resample": 2,
        "do_center_crop": False,
    },
    "cropped as it is": {"do_resize": False, "crop_size": {"height": 50, "width": 37}},
    "other scale": {
        "size": {"shortest_edge": 36},
        "crop_size": {"height": 35, "width": 36},
        "rescale_factor": 0.01,
        "image_mean": [0.5, 0.25, 0.125],
        "image_std": [0.5, 2.0, 1.5],
    },
    "unscaled": {"do_rescale": False, "crop_size": {"height": 9, "width": 8}},
    "not normalised": {"do_normalize": False, "crop_size": {"height": 8, "width": 9}},
}


@pytest.mark.parametrize("size", [(61, 45), (45, 62), (300, 227), (40, 40)], ids=str)
@pytest.mark.parametrize("settings", SETTINGS)
def test_preprocessing(tmp_path: Path, settings: str, size: tuple[int, int]) -> None:
    """Pixels are exactly equal, with the preprocessor's file that transformers writes."""
    processor = CLIPImageProcessorPil(**SETTINGS[settings])
    processor.save_pretrained(tmp_path)
    expected = processor(images=picture(*size), return_tensors="np")["pixel_values"][0]
    output = ClipPreprocessor.read(tmp_path)(picture(*size))
    assert output.dtype == np.float32
    np.testing.assert_array_equal(output, expected.transpose(1, 2, 0))
