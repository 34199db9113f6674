"""Step caches: a step of which little would change takes over what the last whole one added.

A network of equal blocks says what it has seen of a step before it runs most of them, its *signal*.
Each row of the batch decides by its own signal whether the remaining blocks run for it, or whether
what they added to its tokens in its last whole step, the *residual*, is added once more. Signal and
residual are leaves of the row. A *plan* decides without any signal, and weighs the residuals of
several whole steps. Blocks run row by row here, so that nobody pays for a neighbour and
no neighbour changes a bit; where a layout has rows side by side, those of one round run together
if any of them wants to, and each takes its own.

Source: Cheng 2024 (ParaAttention, first block cache), as diffusers' hooks/first_block_cache.py;
Liu et al. 2024 (TeaCache), eq. 4 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
"""Tokens that a signal has at most, evenly chosen: their mean is as good as that of all, and a
video's hidden state, kept once more, is not small."""


KEPT, PLANNED = "step_cache", "planned_cache"
"""Name of the cache in rows, and in the inputs of their encoding; of a planned one there."""
RESIDUALS = ("residual", *(f"residual_{number}" for number in range(1, 1 + MAX_ORDER)))
"""Leaves of a cache: the residual of the last whole step, then those of steps before it."""
RESIDUAL = ("prompts", "tokens", None)
"""Axes of a row's residual that a layout may split, between steps too: it is as large as the hidden
tokens. All else that rows have lies whole on each device."""


class Entered(NamedTuple):
    """A step before the blocks that it may do without."""

    x: Any
    """Input of these blocks: a pytree with the batch in front."""
    base: Tokens
    """The tokens of it that they add to."""
    signal: Tokens


def blank(prompts: int, tokens: int, width: int, dtype: DTypeLike) -> dict[str, Float[Array, ...]]:
    """Return a row's cache before its first step, which runs whole whatever its threshold is."""
    sampled = len(range(0, tokens, _stride(tokens)))
    return {
        "signal": jnp.zeros((prompts, sampled, width), dtype),
        "residual": jnp.zeros((prompts, tokens, width), dtype),
        "distance": jnp.zeros((), jnp.float32),
    }


def blank_plan(
    depth: int, prompts: int, tokens: int, width: int, dtype: DTypeLike
) -> dict[str, Float[Array, ...]]:
    """Return a planned row's cache before its first step: residuals of no steps."""
    return {name: jnp.zeros((prompts, tokens, width), dtype) for name in RESIDUALS[:depth]}


@dataclass
class CachedStep:
    """Step of a batch with what its rows have kept; `after` is what they keep then.

    Args:
        cached: leaves as `blank` has them, or `blank_plan`, with the rows in front.
        values: the step's, of every row.
    """

    kind: CacheKind
    cached: Mapping[str, Array]
    values: Mapping[str, Array]
    after: dict[str, Array] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """Number of the first block that a step may do without."""
        return 1 if self.kind == "first-block" else 0

    def entered(
        self,
        x: Any,
        base: Tokens,
        behind_first: Callable[[], tuple[Any, Tokens]],
        seen: Callable[[], Tokens],
    ) -> Entered:
        """Return the step before the blocks that it may do without.

        Args:
            x, base: input of all blocks, and the tokens of it that they add to.
            behind_first: return the same behind the first block, what it adds being the signal.
            seen: return tokens as the first block's attention sees them, a signal otherwise.
        """
        if not self.first:
            return Entered(x, base, seen())
        x, tokens = behind_first()
        return Entered(x, tokens, tokens - base)

    def run(self, entered: Entered, others: Any, rest: Rest) -> Tokens:
        """The tokens behind the last block.

        Args:
            others: what `rest` is told besides, a pytree with the batch in front.
            rest: (x, others) → tokens, of any part of the batch: the remaining blocks.
        """
        rows = len(self.cached[RESIDUALS[0]])
        prompts = len(entered.base) // rows
        cached = {name: leaf[:, :prompts] for name, leaf in self.cached.items() if leaf.ndim > 1}
        whole, reused, kept = self._decided(entered.signal, cached)
        tokens = reused.shape[2]
        behind = ((0, 0), (0, entered.base.shape[1] - tokens), (0, 0))
        residual = split(jnp.pad(_flat(reused), behind), *AXES)
        hidden, residual = _in_rounds(whole, (entered.x, others), entered.base, residual, rest)
        residual = residual[:, :tokens].reshape(rows, prompts, tokens, -1)
        for name, new in (kept | self._residuals(whole, residual, cached)).items():
            # a prompt that this step leaves out keeps what it has: its next step runs whole
            own = self.cached[name]
            self.after[name] = new if new.ndim < 2 else _joined_prompts(new, own)
        return hidden

    def _decided(
        self, seen: Tokens, cached: Mapping[str, Array]
    ) -> tuple[Bool[Array, " rows"], Array, dict[str, Array]]:
        """Decide which rows run whole, what the others add, and what all keep of their signals."""
        tokens, before = cached["residual"].shape[2], cached["signal"]
        signal = seen[:, : tokens : _stride(tokens)].reshape(before.shape)
        distance = _change(signal, before)
        if self.kind == "teacache":
            rescaled = jax.vmap(jnp.polyval)(self.values[COEFFICIENTS], distance)
            distance = self.cached["distance"] + jnp.abs(rescaled)
        # No number is no reason to leave anything out: all that is not below runs whole.
        whole = split(~(distance < self.values[THRESHOLD]), None)
        if self.kind == "first-block":
            signal = jnp.where(whole[:, None, None, None], signal, before)
        kept = {"signal": signal, "distance": jnp.where(whole, 0.0, distance)}
        return whole, cached["residual"], kept

    def _residuals(
        self, whole: Bool[Array, " rows"], added: Array, cached: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the residuals that are kept, given what the step added to each row's tokens."""
        return {RESIDUALS[0]: added}


class PlannedStep(CachedStep):
    """Step by a plan: weights of the kept residuals, all zero where it runs whole."""

    def entered(
        self,
        x: Any,
        base: Tokens,
        behind_first: Callable[[], tuple[Any, Tokens]],
        seen: Callable[[], Tokens],
    ) -> Entered:
        """Return the step before its first block: nothing of it is a signal."""
        return Entered(x, base, base)

    def _decided(
        self, seen: Tokens, cached: Mapping[str, Array]
    ) -> tuple[Bool[Array, " rows"], Array, dict[str, Array]]:
        weights = self.values[WEIGHTS]
        # No number is no reason to leave anything out.
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
        """A whole step's own goes before the others, of which the oldest is forgotten."""
        before = _in_order(cached)
        return {
            name: jnp.where(whole[:, None, None, None], new, old)
            for name, new, old in zip(RESIDUALS, (added, *before), before, strict=False)
        }


def cache_input(prompts: int, tokens: int, depth: int = 0) -> dict[str, np.ndarray]:
    """Return the input of `encode` for a row with a cache of that size; an array without values.

    Args:
        depth: residuals that a plan needs; 0: there is no plan.
    """
    if depth:
        return {PLANNED: np.zeros((depth, prompts, tokens, 0), np.float32)}
    return {KEPT: np.zeros((prompts, tokens, 0), np.float32)}


def initial_cache(inputs: Mapping[str, Array], width: int, dtype: DTypeLike) -> dict[str, Any]:
    """The cache of a row before its first step, as its entry; none where there is none."""
    if PLANNED in inputs:
        depth, prompts, tokens, _ = inputs[PLANNED].shape
        return {KEPT: blank_plan(depth, prompts, tokens, width, dtype)}
    if KEPT not in inputs:
        return {}
    prompts, tokens, _ = inputs[KEPT].shape
    return {KEPT: blank(prompts, tokens, width, dtype)}


def cached_step(
    kind: CacheKind | None, rows: Mapping[str, Any], values: Mapping[str, Array]
) -> CachedStep | None:
    """Return what a step cache works with; None: without one."""
    if kind is None:
        return None
    return (PlannedStep if kind == "planned" else CachedStep)(kind, rows[KEPT], values)


def updated_cache(step: CachedStep | None) -> dict[str, Any]:
    """The entry of rows after it."""
    return {} if step is None else {KEPT: step.after}


def _change(
    signal: Float[Array, "rows prompts sampled width"],
    before: Float[Array, "rows prompts sampled width"],
) -> Float[Array, " rows"]:
    """Relative, in the mean; of a row's prompts the larger one, since their difference counts."""
    new, old = signal.astype(jnp.float32), before.astype(jnp.float32)
    change = jnp.abs(new - old).mean(axis=(2, 3)) / jnp.abs(old).mean(axis=(2, 3))
    return change.max(axis=1)


def _in_rounds(
    whole: Bool[Array, " rows"], block_inputs: Any, base: Tokens, residual: Tokens, rest: Rest
) -> tuple[Tokens, Tokens]:
    """Hidden tokens and residuals of all rows, so many at a time as have devices of their own."""
    together = side_by_side(len(whole), len(base) // len(whole))

    def one(round: tuple[Any, ...]) -> tuple[Tokens, Tokens]:
        whole, block_inputs, base, residual = round
        return _one_round(whole, block_inputs, base, residual, rest)

    if together == len(whole):
        return one((whole, block_inputs, base, residual))
    rounds = jax.tree.map(
        lambda leaf: _parted(leaf, len(whole), together), (whole, block_inputs, base, residual)
    )
    hidden, residual = jax.lax.map(one, rounds)
    return _joined(hidden, together), _joined(residual, together)


def _one_round(
    whole: Bool[Array, " rows"], block_inputs: Any, base: Tokens, residual: Tokens, rest: Rest
) -> tuple[Tokens, Tokens]:
    def run() -> tuple[Tokens, Tokens]:
        found = rest(*block_inputs)
        return found, found - base

    def reuse() -> tuple[Tokens, Tokens]:
        return base + residual, residual

    found = jax.lax.cond(whole.any(), run, reuse)
    if len(whole) == 1:
        return found
    mine = jnp.repeat(whole, len(base) // len(whole))[:, None, None]
    new, old = (jnp.where(mine, a, b) for a, b in zip(found, reuse(), strict=True))
    return new, old


def side_by_side(rows: int, prompts: int) -> int:
    """Rows that are run together, because the layout has devices for each of them."""
    layout = trace_options().layout
    if layout is None:
        return 1
    (names,) = layout.split(("batch",), (rows * prompts,))
    devices = layout.devices(names)
    return devices // math.gcd(devices, prompts)


def _parted(x: Array, rows: int, together: int) -> Array:
    """Deal [rows · each, …] → [rounds, together · each, …].

    A device's rows are in rounds of their own, so that none of them moves.
    """
    each = len(x) // rows
    parted = x.reshape(together, rows // together, each, *x.shape[1:]).swapaxes(0, 1)
    return parted.reshape(rows // together, together * each, *x.shape[1:])


def _joined(x: Array, together: int) -> Array:
    """The inverse of `_parted`."""
    rounds, each = len(x), x.shape[1] // together
    parted = x.reshape(rounds, together, each, *x.shape[2:]).swapaxes(0, 1)
    return parted.reshape(-1, *x.shape[2:])


def _flat(x: Float[Array, "rows prompts tokens width"]) -> Tokens:
    return x.reshape(-1, *x.shape[2:])


def _in_order(cached: Mapping[str, Array]) -> list[Array]:
    """Return the kept residuals, the latest first."""
    return [cached[name] for name in RESIDUALS if name in cached]


def _joined_prompts(new: Array, own: Array) -> Array:
    """Return all of a row's prompts, the first of them new."""
    return jnp.concatenate([new, own[:, new.shape[1] :]], axis=1)


def _stride(tokens: int) -> int:
    return -(-tokens // MAX_SIGNAL)
