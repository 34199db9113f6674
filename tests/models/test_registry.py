"""Model registry: supported checkpoints, and refusals of all others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import models.demo
from models import registry
from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.loading.sources import ImagePromptSource
from tests.parity.tiny import make_flux


def test_another_kind_is_refused_by_name_with_what_is_served(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusion3Pipeline"}')
    with pytest.raises(UnsupportedCheckpoint, match=r"StableDiffusion3Pipeline.*FluxPipeline"):
        registry.load("other", str(tmp_path), "float32", {})


@pytest.mark.parametrize(
    ("component", "change", "named"),
    [
        ("transformer/config.json", {"out_channels": 8}, "out_channels / 4 is 2"),
        ("transformer/config.json", {"in_channels": 96, "out_channels": 16}, "in_channels is 96"),
        ("model_index.json", {"_class_name": "FluxFillPipeline"}, "a FluxFillPipeline .* has 96"),
        ("transformer/config.json", {"joint_attention_dim": 41}, "joint_attention_dim is 41"),
        ("scheduler/scheduler_config.json", {"_class_name": "DDIMScheduler"}, "DDIMScheduler"),
        ("vae/config.json", {"act_fn": "mish"}, "mish"),
        ("text_encoder/config.json", {"hidden_act": "relu6"}, "relu6"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name(
    tmp_path: Path, component: str, change: dict, named: str
) -> None:
    file = make_flux(tmp_path) / component
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=named):
        registry.load("tiny", str(tmp_path), "float32", {})


@pytest.mark.parametrize("family", ["flux", "sdxl", "wan"])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_an_autoencoder_that_gives_no_numbers_is_refused(
    family: str, broken: float, tmp_path: Path
) -> None:
    """One weight of a demo model is not finite; conversion to pixels would hide it."""
    folder = tmp_path / family
    shutil.copytree(Path(models.demo.__file__).parent / family, folder)
    (file,) = (folder / "vae").glob("*.safetensors")
    tensors = load_file(file)
    name = max(name for name in tensors if name.startswith("decoder.") and "bias" in name)
    tensors[name][-1] = broken
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"^vae: NaN or infinity in decoder\.[\w.]+bias;"):
        registry.load("demo", str(folder), "float32", {})


def test_defaults_come_from_diffusers_then_the_folder_then_the_operator(tmp_path: Path) -> None:
    folder = make_flux(tmp_path)
    shipped = {"defaults": {"width": 64, "num_inference_steps": 9}}
    (folder / "atelier.json").write_text(json.dumps(shipped))
    spec = registry.load("tiny", str(folder), "float32", {"num_inference_steps": 3}).spec
    assert (spec.defaults["width"], spec.defaults["num_inference_steps"]) == (64, 3)
    assert spec.defaults["height"] == 128 * 4  # 128 latents of the tiny VAE's four pixels
    assert spec.name == "tiny" and spec.family == "flux"


def test_a_default_of_an_unknown_field_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="num_frames"):
        registry.load("tiny", str(make_flux(tmp_path)), "float32", {"num_frames": 5})


def test_networks_that_read_images_are_refused_where_none_are_taken() -> None:
    folder = Path(models.demo.__file__).parent / "wan"
    redux = {"redux": ImagePromptSource("somewhere")}
    with pytest.raises(CheckpointError, match="image_prompts are set, but WanPipeline does"):
        registry.load("demo", str(folder), "float32", {}, image_prompts=redux)
