"""Training can be stopped and taken up again anywhere, and ends where its time ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.demo.checkpoint import restore, save
from models.demo.configs import CLIP, FLUX, T5, Sizes
from models.demo.schedule import Clock, warmup_stable_decay
from models.demo.tokenizers import CLIP_LENGTH, T5_LENGTH
from models.demo.train import make_advance, start

SEED = 4
TINY = Sizes(
    clip=replace(CLIP, hidden_size=16, intermediate_size=16, num_hidden_layers=1),
    t5=replace(T5, d_model=16, d_kv=4, d_ff=16, num_layers=1),
    flux=replace(
        FLUX,
        num_layers=0,
        num_single_layers=1,
        num_attention_heads=1,
        joint_attention_dim=16,
        pooled_projection_dim=16,
    ),
)


def random_data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    clip = rng.integers(0, CLIP.eos_token_id, (8, CLIP_LENGTH)).astype(np.int32)
    clip[:, -1] = CLIP.eos_token_id
    t5 = rng.integers(0, T5.vocab_size, (8, T5_LENGTH)).astype(np.int32)
    return {
        "latents": rng.standard_normal((8, 36, FLUX.in_channels)).astype(np.float16),
        "clip": clip,
        "t5": t5,
        "empty": {"clip": clip[0], "t5": t5[0]},
    }


def test_a_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    graph, first = start(SEED, TINY)
    del first["spent_s"]
    weights = jax.tree.map(np.array, first["parameters"])
    advance, data = make_advance(graph, SEED, batch=4), random_data()
    state, _ = advance(first, data, 0.5)
    save(tmp_path / "run.safetensors", state)
    resumed = jax.tree.map(jnp.asarray, restore(tmp_path / "run.safetensors", state))
    for _ in range(2):
        state, error = advance(state, data, 0.5)
    for _ in range(2):
        resumed, error_again = advance(resumed, data, 0.5)

    assert float(error) == float(error_again)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(resumed), strict=True):
        assert np.array_equal(one, other)
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), weights, state["parameters"])
    assert sum(jax.tree.leaves(moved)) > len(jax.tree.leaves(moved)) / 2


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
