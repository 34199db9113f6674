"""Training can be stopped and resumed at any step, and ends at its time limit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lab.demo.recipes import flux, sdxl, wan
from lab.demo.training.checkpoint import restore, save
from lab.demo.training.recipe import Recipe
from lab.demo.training.schedule import Clock, warmup_stable_decay
from lab.demo.training.train import make_advance, start
from lab.demo.training.train_vae import Normed
from tests import coarse

SEED, RATE = 4, 0.5
TINY_CLIP = replace(flux.CLIP, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
TINY_FLUX = flux.FluxSizes(
    clip=TINY_CLIP,
    t5=replace(flux.T5, d_model=16, d_kv=4, d_ff=16, num_layers=1),
    flux=replace(
        flux.FLUX,
        num_layers=0,
        num_single_layers=1,
        num_attention_heads=1,
        joint_attention_dim=16,
        pooled_projection_dim=16,
    ),
)
TINY_SDXL = sdxl.SdxlSizes(
    clip=TINY_CLIP,
    clip_2=replace(TINY_CLIP, projection_dim=8),
    unet=replace(
        sdxl.UNET,
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",),
        mid_block_type=None,
        block_out_channels=(8,),
        attention_head_dim=1,
        cross_attention_dim=32,
        projection_class_embeddings_input_dim=sdxl.SIZES * sdxl.SIZE_FEATURES + 8,
    ),
)
TINY_WAN = wan.WanSizes(
    t5=replace(wan.T5, d_model=16, d_kv=4, d_ff=16, num_layers=1),
    wan=replace(
        wan.WAN, num_attention_heads=1, attention_head_dim=16, text_dim=16, ffn_dim=16, num_layers=1
    ),
)
RECIPES = [flux.Flux(TINY_FLUX), sdxl.Sdxl(TINY_SDXL), wan.Wan(TINY_WAN)]


def random_data(recipe: Recipe, folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    recipe.write_tokenizers(folder)
    tokenizers = recipe.tokenizers(folder)
    prompts = [scene.prompt for scene in recipe.subject.scenes(rng, 8)]
    return {
        "latents": rng.standard_normal((8, *recipe.latents_shape)).astype(np.float16),
        "tokens": {name: tokenizer.encode(prompts) for name, tokenizer in tokenizers.items()},
        "empty": {name: tokenizer.encode([""])[0] for name, tokenizer in tokenizers.items()},
    }


def untrained(recipe: Recipe) -> nnx.Module:
    """Initialize weights with NumPy, because JAX would compile a program per shape."""
    rng = np.random.default_rng(SEED)

    def random_leaf(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        spread = math.prod(leaf.shape[:-1]) ** -0.5
        return np.asarray(rng.normal(0, spread, leaf.shape), leaf.dtype)

    graph, state = nnx.split(nnx.eval_shape(lambda: recipe.untrained(SEED)))
    return nnx.merge(graph, jax.tree.map(random_leaf, state))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_resumed_run_is_the_same_run(recipe: Recipe, tmp_path: Path) -> None:
    graph, first = start(untrained(recipe))
    del first["spent_s"]
    weights = jax.tree.map(np.array, first["parameters"])
    data = random_data(recipe, tmp_path)
    lowered = make_advance(graph, SEED, batch=4).lower(first, data, RATE)
    advance = lowered.compile(compiler_options=coarse.OPTIONS)
    state, _ = advance(first, data, RATE)
    save(tmp_path / "run.safetensors", state)
    resumed = jax.tree.map(jnp.asarray, restore(tmp_path / "run.safetensors", state))
    for _ in range(2):
        state, error = advance(state, data, RATE)
    for _ in range(2):
        resumed, error_again = advance(resumed, data, RATE)

    assert float(error) == float(error_again)
    for leaf, resumed_leaf in zip(jax.tree.leaves(state), jax.tree.leaves(resumed), strict=True):
        assert np.array_equal(leaf, resumed_leaf)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), weights, state["parameters"])
    assert sum(jax.tree.leaves(changed)) > len(jax.tree.leaves(changed)) / 2


def test_normed_latents_keep_their_scale() -> None:
    """Latents have mean 0 and deviation 1 per channel, also with noise; `raw` restores them."""
    scale = jnp.array([0.1, 1.0, 30.0])
    raw = scale * jax.random.normal(jax.random.key(0), (4, 5, 6, 3)) + 7
    normed = Normed(raw)
    assert np.allclose(normed.latents.mean((0, 1, 2)), 0, atol=1e-4)
    assert np.allclose(normed.latents.std((0, 1, 2)), 1, atol=1e-3)
    assert np.allclose(normed.raw, raw, rtol=1e-5)
    normed.add_noise(jax.random.key(1), jnp.float32(0.5))
    # Deviation of uniform levels up to 0.5: 0.5 / sqrt(3). Four rows have few levels.
    moved = (normed.raw - raw).std((0, 1, 2)) / raw.std((0, 1, 2))
    assert np.allclose(moved, moved[0], rtol=0.2)
    assert 0.1 < moved[0] < 0.5


def test_another_recipe_is_not_resumed(tmp_path: Path) -> None:
    save(tmp_path / "run.safetensors", {"weights": np.zeros(3)})
    with pytest.raises(ValueError, match="another recipe"):
        restore(tmp_path / "run.safetensors", {"weights": np.zeros(4)})


def test_the_rate_rises_holds_and_falls() -> None:
    rates = [warmup_stable_decay(p, warmup=0.1, decay=0.4) for p in np.linspace(0, 1, 101)]
    assert rates[0] == 0
    assert rates[5] == pytest.approx(0.5)
    assert set(rates[10:61]) == {1.0}
    assert all(np.diff(rates[61:]) < 0)
    assert rates[-1] == pytest.approx(0)


def test_the_clock_counts_earlier_sittings() -> None:
    clock = Clock(budget_s=1000, spent_s=900)
    assert 0.9 <= clock.progress() < 0.95
    assert Clock(budget_s=1, spent_s=2).progress() == 1
