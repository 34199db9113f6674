"""Configs, specs and single files of Qwen-Image 2.1: supported values, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models import published, registry
from models.loading.sources import SHAPES
from models.qwenimage21.config import QwenImage21Config
from models.spec.request import RequestError
from tests.models.single_files import are_equal, weights, write
from tests.parity.tiny_qwenimage21 import make_qwenimage21


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"patch_size": 2}, "patch_size"),
        ({"out_channels": 16}, "out_channels"),
        ({"causal_condition": False}, "causal_condition"),
        ({"axes_dims_rope": [16, 56, 58]}, "axes_dims_rope"),
        ({"num_layers": 0}, "num_layers"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        QwenImage21Config.from_dict(values)


def test_published_checkpoint_has_diffusers_defaults(tmp_path: Path) -> None:
    published.write("qwen-image-2.1", tmp_path)
    loaded = registry.load("model", str(tmp_path), "bfloat16", {}, reader=SHAPES)
    defaults, limits = loaded.spec.defaults, loaded.spec.limits
    assert (defaults["width"], defaults["height"]) == (1024, 1024)
    assert (defaults["num_inference_steps"], defaults["true_cfg_scale"]) == (40, 1.0)
    assert (limits.size_multiple_px, limits.max_pixels) == (32, 2752 * 1536)
    for more in ({"width": 1040}, {"max_sequence_length": 1025}, {"num_inference_steps": 1}):
        with pytest.raises(RequestError) as error:
            loaded.prepare({**defaults, "prompt": "words", "seed": 0, **more}, {})
        assert error.value.field == next(iter(more))


def test_file_with_fused_feed_forwards_is_read(tmp_path: Path) -> None:
    """ComfyUI's files have the gate before the other half of a feed-forward's input."""
    folder = make_qwenimage21(tmp_path / "base")
    stored = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    fused = {}
    for key, tensor in stored.items():
        if key.endswith("img_mlp.gate_layer.weight"):
            up = stored[key.replace("gate_layer", "proj")]
            fused[key.replace("gate_layer", "gate_up")] = torch.cat([tensor, up])
        elif not key.endswith("img_mlp.proj.weight"):
            fused[key] = tensor
    prefixed = {f"model.diffusion_model.{key}": tensor for key, tensor in fused.items()}
    file = write(prefixed, tmp_path / "file.safetensors")
    assert are_equal(weights(file, folder), weights(folder))
