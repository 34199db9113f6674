"""Step caches: which rows run whole, what is cached, and that rows of a batch change no bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.nn.layers.step_cache import MAX_SIGNAL, BlockInputs, CachedStep, blank
from models.parallel.trace_options import TraceOptions
from models.spec.quality_presets import COEFFICIENTS, THRESHOLD, CacheKind
from tests.parallel.layouts import layout

TOKENS, WIDTH, PROMPTS = 6, 4, 2
LAST_BITS = 1e-6
"""Tolerance of sums of a few units between two programs, which XLA fuses differently (jax 0.12)."""
IDENTITY = [0.0, 0.0, 0.0, 1.0, 0.0]


def tokens(seed: int, rows: int) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(rows * PROMPTS, TOKENS, WIDTH)).astype(np.float32))


def rest(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Stand-in for the remaining blocks; its result depends on every token and prompt."""
    return x + jnp.sin(x * scale[:, None, None]) @ jnp.full((WIDTH, WIDTH), 0.3)


def stacked(*rows: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def step(
    kind: CacheKind, kept: Any, x: jax.Array, thresholds: list[float], seen: Any = None
) -> tuple[np.ndarray, Any, list[int]]:
    """Run one cached step; return its output tokens, its cache, and the prompts of each run of the
    blocks.
    """
    ran: list[int] = []

    def counted(x: jax.Array, scale: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: ran.append(len(x)))
        return rest(x, scale)

    @jax.jit
    def run(kept: Any, x: jax.Array, seen: jax.Array, values: Any) -> tuple[jax.Array, Any]:
        cached = CachedStep(kind, kept, values)
        scale = jnp.arange(1, len(x) + 1, dtype=jnp.float32)
        return cached.run(BlockInputs(x, x, seen), scale, counted), cached.after

    values = {
        THRESHOLD: jnp.asarray(thresholds, jnp.float32),
        COEFFICIENTS: jnp.tile(jnp.asarray(IDENTITY, jnp.float32), (len(thresholds), 1)),
    }
    hidden, after = run(kept, x, x if seen is None else seen, values)
    jax.effects_barrier()
    return np.asarray(hidden), after, ran


def fresh(rows: int, prompts: int = PROMPTS) -> Any:
    return stacked(*[blank(prompts, TOKENS, WIDTH, jnp.float32)] * rows)


def whole(x: jax.Array) -> np.ndarray:
    return np.asarray(jax.jit(rest)(x, jnp.arange(1, len(x) + 1, dtype=jnp.float32)))


@pytest.mark.parametrize("kind", ["first-block", "teacache"])
def test_first_step_without_cache_runs_in_full(kind: CacheKind) -> None:
    """A first step ignores the threshold. At threshold 0 every step runs whole."""
    x = tokens(1, 2)
    hidden, after, ran = step(kind, fresh(2), x, [1e9, 1e9])
    assert hidden == pytest.approx(whole(x), abs=LAST_BITS) and ran == [PROMPTS, PROMPTS]
    hidden, _, ran = step(kind, after, x, [0.0, 0.0])
    assert hidden == pytest.approx(whole(x), abs=LAST_BITS) and ran == [PROMPTS, PROMPTS]


def test_each_row_decides_for_itself() -> None:
    """The blocks run only for rows above their threshold. Other rows add the cached residual."""
    x = tokens(2, 3)
    _, cache, _ = step("first-block", fresh(3), x, [0.0] * 3)
    near = x * 1.05
    hidden, _, ran = step("first-block", cache, near, [0.1, 0.0, 0.01])
    residual = np.asarray(cache["residual"]).reshape(hidden.shape)
    assert ran == [PROMPTS, PROMPTS]
    assert np.array_equal(hidden[:2], np.asarray(near)[:2] + residual[:2])
    assert hidden[2:] == pytest.approx(whole(near)[2:], abs=LAST_BITS)


def test_other_rows_change_no_bit() -> None:
    x, unrelated = tokens(3, 2), tokens(4, 2)
    _, cache, _ = step("first-block", fresh(2), x, [0.0, 0.0])
    near = x * 1.05
    mixed = jnp.concatenate([near[:PROMPTS], unrelated[PROMPTS:]])
    first, after, _ = step("first-block", cache, near, [0.1, 0.1])
    second, after_mixed, _ = step("first-block", cache, mixed, [0.1, 0.0])
    assert np.array_equal(first[:PROMPTS], second[:PROMPTS])
    for name, leaf in after.items():
        assert np.array_equal(leaf[0], after_mixed[name][0]), name
    assert not np.array_equal(first[PROMPTS:], second[PROMPTS:])


def test_first_block_residual_is_compared_with_the_last_full_step() -> None:
    """Small changes accumulate, because the comparison stays with the last whole step."""
    x = tokens(5, 1)
    _, cache, _ = step("first-block", fresh(1), x, [0.0])
    runs = []
    for factor in (1.04, 1.08, 1.12, 1.16):
        _, cache, ran = step("first-block", cache, x * factor, [0.1])
        runs.append(len(ran))
    assert runs == [0, 0, 1, 0]


def test_teacache_adds_changes_up_from_step_to_step() -> None:
    x = tokens(6, 1)
    _, cache, _ = step("teacache", fresh(1), x, [0.0])
    distances = []
    for factor in (1.04, 1.0, 1.04):
        _, cache, _ = step("teacache", cache, x * factor, [0.1])
        distances.append(float(cache["distance"][0]))
    assert distances == pytest.approx([0.04, 0.04 + 0.04 / 1.04, 0.0], abs=1e-4)


def test_nan_signal_runs_the_whole_step() -> None:
    x = tokens(7, 1)
    _, cache, _ = step("first-block", fresh(1), x, [0.0])
    _, _, ran = step("first-block", cache, x, [1e9], seen=x * jnp.nan)
    assert ran == [PROMPTS]


def test_larger_change_of_two_prompts_decides_the_cache() -> None:
    x = tokens(8, 1)
    _, cache, _ = step("first-block", fresh(1), x, [0.0])
    _, _, ran = step("first-block", cache, x.at[1].multiply(1.2), [0.15])
    assert ran == [PROMPTS]
    _, _, ran = step("first-block", cache, x.at[1].multiply(1.1), [0.15])
    assert ran == []


def test_unguided_step_preserves_the_negative_prompts_residual() -> None:
    x = tokens(9, 1)
    _, cache, _ = step("first-block", fresh(1), x, [0.0])
    hidden, after, _ = step("first-block", cache, x[:1] * 2, [0.0])
    assert hidden.shape == (1, TOKENS, WIDTH)
    assert np.array_equal(after["residual"][0, 1], cache["residual"][0, 1])
    assert not np.array_equal(after["residual"][0, 0], cache["residual"][0, 0])


def test_parallel_rows_use_their_own_cache() -> None:
    """The layout has devices for two rows. The third row's blocks run next to those of the
    first.
    """
    x = tokens(10, 2)
    near = x * 1.05
    with TraceOptions(layout(data=2)).active():
        _, cache, _ = step("first-block", fresh(4, prompts=1), x, [0.0] * 4)
        hidden, after, _ = step("first-block", cache, near, [0.1, 0.1, 0.0, 0.1])
    residual = np.asarray(cache["residual"]).reshape(hidden.shape)
    for row in (0, 1, 3):
        assert np.allclose(hidden[row], np.asarray(near)[row] + residual[row], atol=1e-6)
        assert np.array_equal(after["residual"][row, 0], residual[row])
    assert np.allclose(hidden[2], whole(near)[2], atol=1e-5)
    assert not np.array_equal(after["residual"][2, 0], residual[2])


def test_signal_length_is_bounded() -> None:
    long = jax.eval_shape(lambda: blank(1, 5 * MAX_SIGNAL + 3, WIDTH, jnp.bfloat16))
    assert MAX_SIGNAL // 2 < long["signal"].shape[1] <= MAX_SIGNAL
    assert long["residual"].shape == (1, 5 * MAX_SIGNAL + 3, WIDTH)
