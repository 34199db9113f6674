"""Training of a ControlNet changes only the ControlNet, which initially adds nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lab.demo.recipes.controls import CONFIG, stored_config
from lab.demo.recipes.sdxl import Sdxl
from lab.demo.training import control
from lab.demo.training.frozen_base import TrainingRun, training_data
from lab.demo.training.prompts import Prompts
from lab.tests.demo.training.test_train import TINY_SDXL, untrained
from models.sdxl.control_config import ControlNetConfig
from models.weights.loader import flat_parameters

COUNT, STEPS = 2, 2
PLAIN = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}


def test_only_the_controlnet_moves_and_it_begins_as_nothing(tmp_path: Path) -> None:
    recipe = Sdxl(TINY_SDXL)
    recipe.write_tokenizers(tmp_path)
    model: Any = untrained(recipe)
    rng = np.random.default_rng(0)
    levels = len(TINY_SDXL.unet.block_out_channels)
    kinds = {name: value * levels for name, value in PLAIN.items()}
    trunk = dataclasses.replace(TINY_SDXL.unet, **kinds, mid_block_type="UNetMidBlock2D")
    network = control.untrained(model, dataclasses.replace(CONFIG, trunk=trunk), seed=0)
    latents = jnp.asarray(rng.standard_normal((COUNT, *recipe.latents_shape)), jnp.float32)
    edges = jnp.asarray(255 * rng.integers(0, 2, (COUNT, 96, 96)), jnp.uint8)
    prompts = Prompts(recipe.tokenizers(tmp_path))
    data = training_data(model, prompts, latents, ["a cross", "a circle"], edges)
    times = jnp.array([10.0, 900.0])
    text = jax.tree.map(lambda leaf: leaf[:COUNT], data["text"])
    base_output = model.predict(latents, times, text)
    controlled_output = control.SdxlWithControl(model, network).predict(
        latents, times, (text, edges)
    )
    assert np.array_equal(base_output, controlled_output)

    before = {path: np.array(leaf[...]) for path, leaf in flat_parameters(model).items()}
    session = TrainingRun(STEPS, COUNT, rate=1e-3)
    state = tmp_path / "state.safetensors"
    trained = control.train(model, network, data, session, state)
    resumed_model = control.train(model, network, data, session, state)
    after = flat_parameters(model)
    assert all(np.array_equal(before[path], after[path][...]) for path in before), "base moved"
    changed = {
        path: np.abs(leaf[...]).max() > 0
        for path, leaf in flat_parameters(trained).items()
        if path.startswith(control.OUTPUTS)
    }
    assert changed and all(changed.values())
    resumed = flat_parameters(resumed_model)
    for path, leaf in flat_parameters(trained).items():
        assert np.array_equal(leaf[...], resumed[path][...]), f"{path}: resumed at its end"


def test_the_config_is_read_back() -> None:
    assert ControlNetConfig.from_dict(
        stored_config(CONFIG)
    ).conditioning_embedding_out_channels == (CONFIG.conditioning_embedding_out_channels)
