"""CLIP vision tower: config, dtypes, and refusals of its preprocessing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import transformers
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import config as type_checks

from models.checkpoint.folder import CheckpointError
from models.loading.abstract import abstract_module
from models.vision.clip import ClipVisionConfig, ClipVisionModel
from models.vision.preprocess import ClipPreprocessor
from models.wan.published import CLIP_VIT_H
from tests.models.wan.counts import parameters

SMALL = ClipVisionConfig(
    hidden_size=12, intermediate_size=20, num_hidden_layers=2, image_size=8, patch_size=4
)


@pytest.fixture(autouse=True)
def as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable jaxtyping, so only Atelier's own checks can detect a wrong type."""
    monkeypatch.setattr(type_checks, "jaxtyping_disable", True)


def test_full_size_shapes() -> None:
    """Wan 2.1's encoder, ViT-H/14: 257 tokens of 1280 features."""
    config = ClipVisionConfig.from_dict(CLIP_VIT_H)
    model = abstract_module(ClipVisionModel, config)
    with torch.device("meta"):
        expected = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**CLIP_VIT_H))
    assert parameters(model) == sum(parameter.numel() for parameter in expected.parameters())
    pixels = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    output = nnx.eval_shape(lambda model, pixels: model(pixels), model, pixels)
    assert output.hidden_states.shape == (33, 1, 257, 1280)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_activations_follow_the_weights_dtype(dtype: DTypeLike) -> None:
    def features() -> Any:
        model = ClipVisionModel(SMALL, rngs=nnx.Rngs(0), param_dtype=dtype)
        return model(jnp.zeros((1, 8, 8, 3)))

    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(features))} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be a positive integer, not 0"),
        ({"image_size": [224, 224]}, "image_size must be a positive integer"),
        ({"num_attention_heads": 7}, "1280 must be a multiple of"),
        (
            {"hidden_act": "relu"},
            "one of quick_gelu, gelu, gelu_pytorch_tanh, not 'relu'",
        ),
        ({"patch_size": 225}, "patch_size 225 is larger than the image_size 224"),
    ],
)
def test_configs_that_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClipVisionConfig.from_dict(CLIP_VIT_H | values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_pad": True}, "do_pad is not served"),
        ({"resample": 17}, "resample 17 is not one of Pillow's filters"),
        ({"size": {"longest_edge": 9}}, "shortest_edge or height and width"),
        ({"crop_size": 0}, "shortest_edge or height and width, not 0"),
        ({"image_std": [1.0, 1.0]}, "image_std must be three numbers"),
    ],
)
def test_preprocessing_that_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ClipPreprocessor.from_dict(values)


def test_a_missing_or_damaged_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no preprocessor_config\.json in it"):
        ClipPreprocessor.read(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        ClipPreprocessor.read(tmp_path)


def test_a_processor_as_transformers_5_writes_it(tmp_path: Path) -> None:
    """transformers 5 stores the image values in the processor's file; transformers 4 does not."""
    image_file, processor_file = (
        tmp_path / f"{kind}_config.json" for kind in ("preprocessor", "processor")
    )
    image_file.write_text('{"size": {"shortest_edge": 30}}')
    processor_file.write_text('{"processor_class": "Qwen2VLProcessor"}')
    assert ClipPreprocessor.read(tmp_path).size == 30
    processor_file.write_text('{"image_processor": {"size": {"shortest_edge": 20}}}')
    assert ClipPreprocessor.read(tmp_path).size == 20
    image_file.unlink()
    assert ClipPreprocessor.read(tmp_path).size == 20
