"""Checkpoints written by the training program: configs and names of weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

import models.demo
from lab.demo.recipes.flux import FLUX, Flux
from lab.demo.recipes.sdxl import Sdxl
from lab.demo.recipes.wan import VAE_RENAMES, VAE_WINDOWS, Wan
from lab.demo.training.checkpoint_folder import SavedNetwork, tensors
from lab.demo.training.recipe import Recipe
from models.flux.key_mapping import RENAMES
from models.flux.network import FluxTransformer
from models.vae.video import VideoAutoencoder

HERE = Path(models.demo.__file__).parent
RECIPES: list[type[Recipe]] = [Flux, Sdxl, Wan]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_folder_is_what_the_program_writes(recipe: type[Recipe]) -> None:
    """The folder's scheduler, defaults and index match the recipe; weights and preset costs come
    from training and are not compared."""
    instance = recipe()
    model = nnx.eval_shape(lambda: instance.untrained(0))
    vae = nnx.eval_shape(lambda: instance.subject.untrained_autoencoder())
    checkpoint, folder = instance.checkpoint(model, vae), HERE / recipe.name
    stored = json.loads((folder / "atelier.json").read_text())
    assert stored.pop("reference_px", None) == checkpoint.reference_px
    assert stored["defaults"] == checkpoint.defaults and stored.keys() == {"defaults", "quality"}
    scheduler = json.loads((folder / "scheduler" / "scheduler_config.json").read_text())
    assert scheduler == checkpoint.scheduler
    index = json.loads((folder / "model_index.json").read_text())
    assert index.items() >= json.loads(json.dumps(checkpoint.model_index)).items()
    for name, part in checkpoint.parts.items():
        written = json.loads((folder / name / "config.json").read_text())
        measured = {"latents_mean", "latents_std"}
        config = json.loads(json.dumps(part.config))
        assert {key: written[key] for key in written.keys() - measured} == {
            key: config[key] for key in config.keys() - measured
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
    """Here it is a matrix; torch also stores axes of size one."""
    graph, shapes = nnx.split(nnx.eval_shape(Wan().subject.untrained_autoencoder))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    vae: VideoAutoencoder = nnx.merge(graph, zeros)
    stored = tensors(SavedNetwork(vae, VAE_RENAMES, {}, VAE_WINDOWS))
    channels = vae.config.z_dim
    assert stored["quant_conv.weight"].shape == (2 * channels, 2 * channels, 1, 1, 1)
    assert stored["decoder.mid_block.attentions.0.proj.weight"].shape[2:] == (1, 1)
    assert stored["encoder.conv_in.weight"].shape[2:] == (3, 3, 3)
