"""Model registry: supported checkpoints, and refusals of all others."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import models.demo
from models import published, registry
from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.interface.family import Family
from models.loading.sources import ControlSource, ImagePromptSource, Reading
from tests.parity.tiny import make_flux


def test_unsupported_pipeline_lists_supported_ones(tmp_path: Path) -> None:
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
        ("model_index.json", {"scheduler": ["diffusers", "DDIMScheduler"]}, "DDIMScheduler"),
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


@pytest.mark.parametrize("family", registry.FAMILIES, ids=lambda family: family.name)
def test_each_familys_loaders_can_be_imported(family: Family) -> None:
    assert (Path(registry.__file__).parent / family.name / "family.py").is_file()
    assert all(callable(family.loader(class_name)) for class_name in family.pipelines)
    fields = {field.name for field in dataclasses.fields(Reading)}
    assert family.options <= fields | {"swap_experts"}


def test_no_two_families_have_a_pipeline_or_a_published_checkpoint_in_common() -> None:
    pipelines = [name for family in registry.FAMILIES for name in family.pipelines]
    checkpoints = [name for family in registry.FAMILIES for name in family.published]
    assert len({*pipelines}) == len(pipelines) == len(registry.BY_PIPELINE)
    assert len({*checkpoints}) == len(checkpoints) == len(published.CHECKPOINTS)


@pytest.mark.parametrize(
    ("family", "option", "named"),
    [
        ("wan", {"controls": {"canny": ControlSource("s")}}, "controls are set, but WanPipeline"),
        ("flux", {"refiner": "s"}, "refiner is set, but FluxPipeline does not support it"),
        ("sdxl", {"latent_upsampler": "s"}, "latent_upsampler is set, but StableDiffusionXL"),
        ("sdxl", {"token_buckets": 0.3}, "token_buckets is set, but StableDiffusionXLPipeline"),
        ("flux", {"swap_experts": True}, "FluxPipeline has no experts to swap"),
        ("wan", {"pipeline": "WanVACEPipeline"}, "but it can only be WanPipeline$"),
        ("flux", {"pipeline": "WanPipeline"}, "can only be FluxControlPipeline or .*FluxPipeline$"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_option_that_a_family_does_not_have_is_refused(
    family: str, option: dict, named: str
) -> None:
    folder = Path(models.demo.__file__).parent / family
    with pytest.raises(CheckpointError, match=named):
        registry.load("demo", str(folder), "float32", {}, **option)


def test_published_networks_next_to_a_model_have_paths_in_its_folder() -> None:
    folder = Path("/model")
    assert published.image_prompts("sdxl-ip-adapter", folder) == {
        "plus": "/model/ip-adapter/plus.json"
    }
    assert published.controls("flux-controlnet-union-pro-2", folder) == {
        "canny": {"source": "/model/controlnet"}
    }
    assert published.controls("sdxl-controlnet-union", folder)["depth"] == {
        "source": "/model/controlnet",
        "mode": "depth",
    }
    assert published.refiner("sdxl-refined", folder) == "/model/refiner"
    of_others = published.image_prompts("a", folder), published.controls("a", folder)
    assert (*of_others, published.refiner("sdxl", folder)) == ({}, {}, None)


def test_a_base_is_found_by_the_longest_prefix_of_a_key(tmp_path: Path) -> None:
    key = "conditioner.embedders.0.model.text_projection"
    save_file({key: np.zeros(1)}, tmp_path / "refiner.safetensors")
    save_file({"first.key": np.zeros(1)}, tmp_path / "other.safetensors")
    bases = [registry.base_of(tmp_path / f"{name}.safetensors") for name in ("refiner", "other")]
    assert bases == [f"stabilityai/stable-diffusion-xl-{n}-1.0" for n in ("refiner", "base")]


def test_the_registry_loads_no_jax() -> None:
    program = "import models.published, sys; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(registry.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "models.registry" in ended.stdout.split()
    assert not {"jax", "flax", "torch"} & {*ended.stdout.split()}
