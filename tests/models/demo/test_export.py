"""The shipped folders are checkpoints that diffusers itself loads and runs, and small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from flax import nnx
from safetensors.numpy import load_file

import models.demo
from models.demo.recipes.flux import FLUX, Flux
from models.demo.recipes.sdxl import Sdxl
from models.demo.recipes.wan import VAE_RENAMES, VAE_WINDOWS, Wan
from models.demo.training.checkpoint_folder import SavedNetwork, tensors
from models.demo.training.recipe import Recipe
from models.demo.world import checker, clip_checker
from models.flux.key_mapping import RENAMES
from models.flux.network import FluxTransformer
from models.vae.video import VideoAutoencoder

HERE = Path(models.demo.__file__).parent
MAX_BYTES = 20_000_000
RECIPES: list[type[Recipe]] = [Flux, Sdxl, Wan]
PICTURE = "a large red square on the left of a blue background"
CLIP = "a red circle moves to the right on a blue background"
CASES = {
    "flux": (PICTURE, checker.check),
    "sdxl": (PICTURE, checker.check),
    "wan": (CLIP, clip_checker.check),
}


def drawn(pipeline: Any, defaults: dict[str, Any], prompt: str) -> np.ndarray:
    """What diffusers makes of a prompt with the folder's own defaults, uint8."""
    generator = torch.Generator().manual_seed(1)
    output = pipeline(prompt, generator=generator, output_type="np", **defaults)
    return np.rint(next(iter(output.values()))[0] * 255).astype(np.uint8)


@pytest.mark.parametrize("name", CASES)
def test_diffusers_draws_what_the_prompt_names(name: str) -> None:
    pipeline = DiffusionPipeline.from_pretrained(HERE / name).to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    defaults = json.loads((HERE / name / "atelier.json").read_text())["defaults"]
    fps = defaults.pop("fps", None)
    assert (fps is not None) == (name == "wan")  # of the file, not of the pipeline
    prompt, check = CASES[name]
    report = check(drawn(pipeline, defaults, prompt), prompt)
    assert report.correct, report.criteria


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_diffusers_finds_every_weight_and_no_other(recipe: type[Recipe]) -> None:
    """Its own networks would start with random weights where a name is wrong, and only warn."""
    pipeline = DiffusionPipeline.from_pretrained(HERE / recipe.name)
    for name, file in ((path.parent.name, path) for path in HERE.glob(f"{recipe.name}/*/diff*")):
        stored = {key: tuple(value.shape) for key, value in load_file(file).items()}
        wanted = getattr(pipeline, name).state_dict()
        assert stored == {key: tuple(value.shape) for key, value in wanted.items()}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_folder_is_small_and_has_no_pickle(recipe: type[Recipe]) -> None:
    folder = HERE / recipe.name
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    assert {path.suffix for path in files} <= {".json", ".txt", ".model", ".safetensors"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_folder_is_what_the_program_writes(recipe: type[Recipe]) -> None:
    """Its scheduler, defaults and index; its weights are the run's, and what its presets cost was
    measured with them."""
    made = recipe()
    model = nnx.eval_shape(lambda: made.untrained(0))
    vae = nnx.eval_shape(lambda: made.subject.untrained_autoencoder())
    checkpoint, folder = made.checkpoint(model, vae), HERE / recipe.name
    own = json.loads((folder / "atelier.json").read_text())
    assert own.pop("reference_px", None) == checkpoint.reference_px
    assert own["defaults"] == checkpoint.defaults and own.keys() == {"defaults", "quality"}
    scheduler = json.loads((folder / "scheduler" / "scheduler_config.json").read_text())
    assert scheduler == checkpoint.scheduler
    index = json.loads((folder / "model_index.json").read_text())
    assert index.items() >= json.loads(json.dumps(checkpoint.model_index)).items()
    for name, part in checkpoint.parts.items():
        written = json.loads((folder / name / "config.json").read_text())
        measured = {"latents_mean", "latents_std"}
        wanted = json.loads(json.dumps(part.config))
        assert {key: written[key] for key in written.keys() - measured} == {
            key: wanted[key] for key in wanted.keys() - measured
        }


def test_every_parameter_gets_a_name_of_its_own() -> None:
    config = replace(FLUX, num_layers=1, num_single_layers=2, num_attention_heads=1)
    module = FluxTransformer(config, rngs=nnx.Rngs(0))
    stored = tensors(SavedNetwork(module, RENAMES, {}))
    kernel = module.single_blocks.middle.up.kernel[...][1]
    assert np.array_equal(
        stored["single_transformer_blocks.1.proj_mlp.weight"], np.asarray(kernel, np.float16).T
    )
    count = sum(array.size for array in stored.values())
    assert count == sum(leaf.size for _, leaf in nnx.to_flat_state(nnx.state(module)))


def test_a_convolution_of_one_position_has_its_window() -> None:
    """Here it is a matrix; torch stores the axes of one as well."""
    graph, shapes = nnx.split(nnx.eval_shape(Wan().subject.untrained_autoencoder))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    vae: VideoAutoencoder = nnx.merge(graph, zeros)
    stored = tensors(SavedNetwork(vae, VAE_RENAMES, {}, VAE_WINDOWS))
    channels = vae.config.z_dim
    assert stored["quant_conv.weight"].shape == (2 * channels, 2 * channels, 1, 1, 1)
    assert stored["decoder.mid_block.attentions.0.proj.weight"].shape[2:] == (1, 1)
    assert stored["encoder.conv_in.weight"].shape[2:] == (3, 3, 3)
