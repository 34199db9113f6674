"""Step caching: a step that would change little reuses the residual of the last full step.

Before most of its blocks, a network of equal blocks computes a *signal* of the step. By its own
signal, each row of the batch decides whether the remaining blocks run. If not, it adds the
*residual* once more: what they added to its tokens in its last full step. Signal and residual are
leaves of the row. A *plan* decides without a signal, and weighs the residuals of several full
steps. Blocks run row by row here, so that no row waits for another or changes its bits. If a layout
has rows on separate devices, the rows of one round run together if any of them needs to, and each
keeps its own result.

Source: Cheng 2024 (ParaAttention, first block cache), as diffusers' hooks/first_block_cache.py; Liu
et al. 2024 (TeaCache), eq. 4 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.parallel.placement import split
from models.parallel.trace_options import trace_options
from models.spec.quality_presets import COEFFICIENTS, THRESHOLD, WEIGHTS, CacheKind
from models.spec.step_plan import MAX_ORDER

Tokens = Float[Array, "batch tokens width"]
AXES = ("batch", "tokens", None)
"""Axes of tokens that a layout may split."""
Rest = Callable[[Any, Any], Tokens]

MAX_SIGNAL = 1024
"""Maximum tokens of a signal, evenly chosen: their mean is as good as that of all, and a second
copy of a video's hidden state is not small."""


CACHE_KEY, PLANNED_CACHE_KEY = "step_cache", "planned_cache"
"""Keys of a cache in rows and in the inputs of their encoding; of a planned cache in the inputs."""
RESIDUALS = ("residual", *(f"residual_{number}" for number in range(1, 1 + MAX_ORDER)))
"""Leaves of a cache: the residual of the last full step, then those of steps before it."""
RESIDUAL = ("prompts", "tokens", None)
"""Axes of a row's residual that a layout may split, between steps too: it is as large as the hidden
tokens. Each device has all other state of rows in full."""


class BlockInputs(NamedTuple):
    """State of a step before the blocks that it may skip."""

    x: Any
    """Input of these blocks: a pytree with a leading batch axis."""
    base: Tokens
    """Tokens of `x` that they add to."""
    signal: Tokens


def blank(prompts: int, tokens: int, width: int, dtype: DTypeLike) -> dict[str, Float[Array, ...]]:
    """Return an empty step cache for a row's first step, which runs in full at any threshold."""
    sampled = len(range(0, tokens, _stride(tokens)))
    return {
        "signal": jnp.zeros((prompts, sampled, width), dtype),
        "residual": jnp.zeros((prompts, tokens, width), dtype),
        "distance": jnp.zeros((), jnp.float32),
    }


def blank_plan(
    depth: int, prompts: int, tokens: int, width: int, dtype: DTypeLike
) -> dict[str, Float[Array, ...]]:
    """Return an empty step cache of a planned row's first step: zero residuals."""
    return {name: jnp.zeros((prompts, tokens, width), dtype) for name in RESIDUALS[:depth]}


@dataclass
class CachedStep:
    """Step of a batch with the caches of its rows; `after` collects the updated caches.

    Args:
        cached: leaves of `blank` or `blank_plan`, with the rows in front.
        values: the step's values, of every row.
    """

    kind: CacheKind
    cached: Mapping[str, Array]
    values: Mapping[str, Array]
    after: dict[str, Array] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """Number of the first block that a step may skip."""
        return 1 if self.kind == "first-block" else 0

    def before_blocks(
        self,
        x: Any,
        base: Tokens,
        after_first: Callable[[], tuple[Any, Tokens]],
        attention_inputs: Callable[[], Tokens],
    ) -> BlockInputs:
        """Compute the signal; return the state before the blocks that may be skipped.

        Args:
            x, base: input of all blocks, and the tokens of it that they add to.
            after_first: returns the same after the first block; the signal is what it adds.
            attention_inputs: returns the tokens that the first block's attention reads; otherwise
                the signal.
        """
        if not self.first:
            return BlockInputs(x, base, attention_inputs())
        x, tokens = after_first()
        return BlockInputs(x, tokens, tokens - base)

    def run(self, block_inputs: BlockInputs, others: Any, rest: Rest) -> Tokens:
        """Run or skip the remaining blocks; return the tokens after the last block.

        Args:
            others: further inputs of `rest`, a pytree with a leading batch axis.
            rest: (x, others) → tokens, for any part of the batch: the remaining blocks.
        """
        rows = len(self.cached[RESIDUALS[0]])
        prompts = len(block_inputs.base) // rows
        cached = {name: leaf[:, :prompts] for name, leaf in self.cached.items() if leaf.ndim > 1}
        whole, reused, kept = self._decided(block_inputs.signal, cached)
        tokens = reused.shape[2]
        padding = ((0, 0), (0, block_inputs.base.shape[1] - tokens), (0, 0))
        residual = split(jnp.pad(_flat(reused), padding), *AXES)
        hidden, residual = _in_rounds(
            whole, (block_inputs.x, others), block_inputs.base, residual, rest
        )
        residual = residual[:, :tokens].reshape(rows, prompts, tokens, -1)
        for name, new in (kept | self._residuals(whole, residual, cached)).items():
            # a prompt that this step skips keeps its cache: its next step is full
            old = self.cached[name]
            self.after[name] = new if new.ndim < 2 else _joined_prompts(new, old)
        return hidden

    def _decided(
        self, signal_tokens: Tokens, cached: Mapping[str, Array]
    ) -> tuple[Bool[Array, " rows"], Array, dict[str, Array]]:
        """Decide which rows run in full; return that mask, residuals to add, leaves to store."""
        tokens, before = cached["residual"].shape[2], cached["signal"]
        signal = signal_tokens[:, : tokens : _stride(tokens)].reshape(before.shape)
        distance = _change(signal, before)
        if self.kind == "teacache":
            rescaled = jax.vmap(jnp.polyval)(self.values[COEFFICIENTS], distance)
            distance = self.cached["distance"] + jnp.abs(rescaled)
        # NaN runs in full: only a distance below the threshold skips blocks.
        whole = split(~(distance < self.values[THRESHOLD]), None)
        if self.kind == "first-block":
            signal = jnp.where(whole[:, None, None, None], signal, before)
        kept = {"signal": signal, "distance": jnp.where(whole, 0.0, distance)}
        return whole, cached["residual"], kept

    def _residuals(
        self, whole: Bool[Array, " rows"], added: Array, cached: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the residuals to store, given what the step added to each row's tokens."""
        return {RESIDUALS[0]: added}


class PlannedStep(CachedStep):
    """Step cache with a plan: weights of the stored residuals, all zero if a step runs in full."""

    def before_blocks(
        self,
        x: Any,
        base: Tokens,
        after_first: Callable[[], tuple[Any, Tokens]],
        attention_inputs: Callable[[], Tokens],
    ) -> BlockInputs:
        """Return the state before the first block; a plan needs no signal."""
        return BlockInputs(x, base, base)

    def _decided(
        self, signal_tokens: Tokens, cached: Mapping[str, Array]
    ) -> tuple[Bool[Array, " rows"], Array, dict[str, Array]]:
        weights = self.values[WEIGHTS]
        # NaN runs in full.
        whole = split(~(weights != 0).any(axis=1) | jnp.isnan(weights).any(axis=1), None)
        shares = [
            weights[:, number, None, None, None] * leaf.astype(jnp.float32)
            for number, leaf in enumerate(_in_order(cached))
        ]
        reused = sum(shares[1:], start=shares[0])
        return whole, reused.astype(cached[RESIDUALS[0]].dtype), {}

    def _residuals(
        self, whole: Bool[Array, " rows"], added: Array, cached: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Store a full step's residual before the earlier ones, and drop the oldest."""
        before = _in_order(cached)
        return {
            name: jnp.where(whole[:, None, None, None], new, old)
            for name, new, old in zip(RESIDUALS, (added, *before), before, strict=False)
        }


def cache_input(prompts: int, tokens: int, depth: int = 0) -> dict[str, np.ndarray]:
    """Return the input of `encode` that declares a row's cache: an array without values.

    Args:
        depth: number of residuals of a plan; 0: no plan.
    """
    if depth:
        return {PLANNED_CACHE_KEY: np.zeros((depth, prompts, tokens, 0), np.float32)}
    return {CACHE_KEY: np.zeros((prompts, tokens, 0), np.float32)}


def initial_cache(inputs: Mapping[str, Array], width: int, dtype: DTypeLike) -> dict[str, Any]:
    """Return a row's cache entry before its first step; empty if its inputs declare no cache."""
    if PLANNED_CACHE_KEY in inputs:
        depth, prompts, tokens, _ = inputs[PLANNED_CACHE_KEY].shape
        return {CACHE_KEY: blank_plan(depth, prompts, tokens, width, dtype)}
    if CACHE_KEY not in inputs:
        return {}
    prompts, tokens, _ = inputs[CACHE_KEY].shape
    return {CACHE_KEY: blank(prompts, tokens, width, dtype)}


def cached_step(
    kind: CacheKind | None, rows: Mapping[str, Any], values: Mapping[str, Array]
) -> CachedStep | None:
    """Build a batch's step with caches; None: no step cache."""
    if kind is None:
        return None
    return (PlannedStep if kind == "planned" else CachedStep)(kind, rows[CACHE_KEY], values)


def updated_cache(step: CachedStep | None) -> dict[str, Any]:
    """Return the step cache of rows after a step, as an entry of their leaves."""
    return {} if step is None else {CACHE_KEY: step.after}


def _change(
    signal: Float[Array, "rows prompts sampled width"],
    before: Float[Array, "rows prompts sampled width"],
) -> Float[Array, " rows"]:
    """Compute the mean relative change of each row's signal: the largest of its prompts.

    Guidance uses the prompts' difference, so a change of either counts.
    """
    new, old = signal.astype(jnp.float32), before.astype(jnp.float32)
    change = jnp.abs(new - old).mean(axis=(2, 3)) / jnp.abs(old).mean(axis=(2, 3))
    return change.max(axis=1)


def _in_rounds(
    whole: Bool[Array, " rows"], block_inputs: Any, base: Tokens, residual: Tokens, rest: Rest
) -> tuple[Tokens, Tokens]:
    """Run rows in rounds, one row per group of devices; return tokens and residuals."""
    together = side_by_side(len(whole), len(base) // len(whole))
    options = trace_options()

    def run_round(round: tuple[Any, ...]) -> tuple[Tokens, Tokens]:
        whole, block_inputs, base, residual, adapters = round
        with replace(options, adapters=adapters).active():
            return _one_round(whole, block_inputs, base, residual, rest)

    batch = (whole, block_inputs, base, residual, options.adapters)
    if together == len(whole):
        return run_round(batch)
    rounds = jax.tree.map(lambda leaf: _parted(leaf, len(whole), together), batch)
    hidden, residual = jax.lax.map(run_round, rounds)
    return _joined(hidden, together), _joined(residual, together)


def _one_round(
    whole: Bool[Array, " rows"], block_inputs: Any, base: Tokens, residual: Tokens, rest: Rest
) -> tuple[Tokens, Tokens]:
    def run() -> tuple[Tokens, Tokens]:
        output = rest(*block_inputs)
        return output, output - base

    def reuse() -> tuple[Tokens, Tokens]:
        return base + residual, residual

    output: tuple[Tokens, Tokens] = jax.lax.cond(whole.any(), run, reuse)
    if len(whole) == 1:
        return output
    is_whole = jnp.repeat(whole, len(base) // len(whole))[:, None, None]
    new, old = (jnp.where(is_whole, a, b) for a, b in zip(output, reuse(), strict=True))
    return new, old


def side_by_side(rows: int, prompts: int) -> int:
    """Return the number of rows that run in parallel, each on different devices."""
    layout = trace_options().layout
    if layout is None:
        return 1
    (names,) = layout.split(("batch",), (rows * prompts,))
    devices = layout.devices(names)
    return devices // math.gcd(devices, prompts)


def _parted(x: Array, rows: int, together: int) -> Array:
    """Reorder a batch [rows · each, …] to rounds [rounds, together · each, …].

    The rows of a device are in separate rounds, so that none of them moves.
    """
    each = len(x) // rows
    parted = x.reshape(together, rows // together, each, *x.shape[1:]).swapaxes(0, 1)
    return parted.reshape(rows // together, together * each, *x.shape[1:])


def _joined(x: Array, together: int) -> Array:
    """Restore the order of a batch before `_parted`."""
    rounds, each = len(x), x.shape[1] // together
    parted = x.reshape(rounds, together, each, *x.shape[2:]).swapaxes(0, 1)
    return parted.reshape(-1, *x.shape[2:])


def _flat(x: Float[Array, "rows prompts tokens width"]) -> Tokens:
    return x.reshape(-1, *x.shape[2:])


def _in_order(cached: Mapping[str, Array]) -> list[Array]:
    """Return a row's stored residuals, the latest first."""
    return [cached[name] for name in RESIDUALS if name in cached]


def _joined_prompts(new: Array, old: Array) -> Array:
    """Replace the first prompts of a row's leaves by new ones."""
    return jnp.concatenate([new, old[:, new.shape[1] :]], axis=1)


def _stride(tokens: int) -> int:
    return -(-tokens // MAX_SIGNAL)
