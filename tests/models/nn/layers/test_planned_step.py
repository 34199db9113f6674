"""Planned step caches: a row's weights decide if it runs whole, and which residuals it adds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.nn.layers.step_cache import PlannedStep, blank_plan
from models.spec.quality_presets import WEIGHTS
from tests.models.nn.layers.test_step_cache import (
    LAST_BITS,
    PROMPTS,
    TOKENS,
    WIDTH,
    rest,
    stacked,
    tokens,
    whole,
)

WHOLE = [0.0, 0.0, 0.0]


def fresh(rows: int, depth: int = 3) -> Any:
    return stacked(*[blank_plan(depth, PROMPTS, TOKENS, WIDTH, jnp.float32)] * rows)


def step(kept: Any, x: jax.Array, weights: list[list[float]]) -> tuple[np.ndarray, Any, list[int]]:
    """Run one planned step; return its output tokens, its cache, and the prompts of each run of the
    blocks.
    """
    ran: list[int] = []

    def counted(x: jax.Array, scale: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: ran.append(len(x)))
        return rest(x, scale)

    @jax.jit
    def run(kept: Any, x: jax.Array, weights: jax.Array) -> tuple[jax.Array, Any]:
        cached = PlannedStep("planned", kept, {WEIGHTS: weights})
        scale = jnp.arange(1, len(x) + 1, dtype=jnp.float32)
        entered = cached.before_blocks(x, x, lambda: (x, x), lambda: x)
        return cached.run(entered, scale, counted), cached.after

    hidden, after = run(kept, x, jnp.asarray(weights, jnp.float32))
    jax.effects_barrier()
    return np.asarray(hidden), after, ran


def test_step_without_weights_runs_whole_and_shifts_the_history() -> None:
    x, y = tokens(1, 2), tokens(2, 2)
    hidden, cache, ran = step(fresh(2), x, [WHOLE, WHOLE])
    assert hidden == pytest.approx(whole(x), abs=LAST_BITS) and ran == [PROMPTS, PROMPTS]
    residual = np.asarray(cache["residual"])
    _, cache, _ = step(cache, y, [WHOLE, WHOLE])
    assert np.array_equal(cache["residual_1"], residual)
    assert not np.array_equal(cache["residual"], residual) and not np.any(cache["residual_2"])


def test_a_step_with_weights_adds_the_weighed_residuals_and_keeps_them() -> None:
    cache = fresh(1)
    for seed in (3, 4, 5):
        _, cache, _ = step(cache, tokens(seed, 1), [WHOLE])
    x, weights = tokens(6, 1), [2.5, -2.0, 0.5]
    hidden, after, ran = step(cache, x, [weights])
    leaves = [np.asarray(cache[name])[0] for name in ("residual", "residual_1", "residual_2")]
    expected = sum(weight * leaf for weight, leaf in zip(weights, leaves, strict=True))
    assert ran == [] and hidden == pytest.approx(np.asarray(x) + expected, abs=1e-5)
    assert all(np.array_equal(after[name], cache[name]) for name in cache)


def test_each_row_has_its_own_plan_and_batching_changes_no_bit() -> None:
    x, unrelated = tokens(7, 2), tokens(8, 2)
    _, cache, _ = step(fresh(2), x, [WHOLE, WHOLE])
    near = x * 1.05
    mixed = jnp.concatenate([near[:PROMPTS], unrelated[PROMPTS:]])
    first, after, ran = step(cache, near, [[1.1, 0.0, 0.0], WHOLE])
    second, after_mixed, _ = step(cache, mixed, [[1.1, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert ran == [PROMPTS]
    assert np.array_equal(first[:PROMPTS], second[:PROMPTS])
    assert not np.array_equal(first[PROMPTS:], second[PROMPTS:])
    for name, leaf in after.items():
        assert np.array_equal(leaf[0], after_mixed[name][0]), name


def test_nan_signal_runs_the_whole_step() -> None:
    _, _, ran = step(fresh(1), tokens(9, 1), [[float("nan"), 0.0, 0.0]])
    assert ran == [PROMPTS]


def test_skipped_prompt_keeps_its_cache() -> None:
    x = tokens(10, 1)
    _, cache, _ = step(fresh(1), x, [WHOLE])
    hidden, after, _ = step(cache, x[:1] * 2, [WHOLE])
    assert hidden.shape == (1, TOKENS, WIDTH)
    assert np.array_equal(after["residual"][0, 1], cache["residual"][0, 1])
    assert np.array_equal(after["residual_1"][0, 0], cache["residual"][0, 0])
