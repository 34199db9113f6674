"""Training of an adapter changes only its matrices, and is deterministic."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from lab.demo.recipes import flux
from lab.demo.training import lora
from lab.demo.training.frozen_base import training_data
from lab.demo.training.prompts import Prompts
from lab.tests.demo.training.test_train import TINY_FLUX, untrained
from models.flux.key_mapping import RENAMES
from models.weights.loader import flat_parameters

RANK, STEPS, COUNT = 2, 3, 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[lora.Changes, lora.Changes]:
    folder: Path = tmp_path_factory.mktemp("tokenizers")
    recipe = flux.Flux(TINY_FLUX)
    recipe.batch = COUNT
    recipe.write_tokenizers(folder)
    model = untrained(recipe)
    rng = np.random.default_rng(0)
    prompts = [scene.prompt for scene in recipe.subject.scenes(rng, COUNT)]
    latents = rng.standard_normal((COUNT, *recipe.latents_shape))
    data = training_data(model, Prompts(recipe.tokenizers(folder)), latents, prompts)
    before = {path: np.array(leaf[...]) for path, leaf in flat_parameters(model).items()}
    first, second = (lora.train(recipe, model, data, RANK, STEPS) for _ in range(2))
    after = flat_parameters(model)
    assert all(np.array_equal(before[path], after[path][...]) for path in before), "base moved"
    return first, second


def test_a_seed_makes_one_adapter(trained: tuple[lora.Changes, lora.Changes]) -> None:
    first, again = (jax.tree.leaves(changes) for changes in trained)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(np.abs(change["up"]).max() > 0 for change in trained[0].values())


def test_layers_have_the_names_and_layout_of_torch(
    trained: tuple[lora.Changes, lora.Changes],
) -> None:
    stored = lora.tensors(trained[0], RENAMES)
    up = trained[0]["transformer.single_blocks.middle.up.kernel"]
    name = "transformer.single_transformer_blocks.0.proj_mlp"
    assert np.array_equal(stored[f"{name}.lora_B.weight"], np.float16(up["up"][0].T))
    assert stored[f"{name}.lora_A.weight"].shape == (RANK, TINY_FLUX.flux.width)
    assert {key.split(".")[-3] for key in stored} == {
        "to_q",
        "to_k",
        "to_v",
        "proj_mlp",
        "proj_out",
    }
