"""Controls of rows: their images into hints as a row begins, their ControlNets' sums in each step.

Rows and their slots for controls run one by one, each by the ControlNet that it names, so that a
batch may mix any of them with none, a row's numbers are its own, and a slot that is empty or out
of its steps costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from models.control.places import IMAGES, KINDS, NETWORKS, PASSES, SCALES, SEEN
from models.interface.pipeline import PyTree
from models.parallel.placement import gathered
from models.parallel.trace_options import trace_options

HINTS = "hints"
"""Leaf of a row: [slots, ...]."""
NO_KIND = -1
"""Kind in slots that a run does not read."""

Module = TypeVar("Module", bound=nnx.Module)
Read = Callable[..., Array]
"""Reading of a control by one ControlNet: (image in [0, 1], kind, further inputs) → hint."""
Run = Callable[..., PyTree]
"""Run of one ControlNet: (what it is told, hints, kinds by slot) → arrays [rows · prompts, ...]."""


def hints(
    reads: Sequence[Read],
    inputs: Mapping[str, Array],
    slots: int,
    empty: Float[Array, ...],
    *further: str,
) -> Float[Array, "slots ..."]:
    """Return what steps are given of a row's control images; zeros in empty slots.

    Args:
        reads: by network.
        empty: hint of an empty slot.
        further: inputs by slot that networks read beside the images.
    """
    if IMAGES not in inputs:
        return jnp.broadcast_to(empty, (slots, *empty.shape))

    def one(_: None, slot: Any) -> tuple[None, Array]:
        image, number, kind, *more = slot
        branches: list[Read] = [lambda *_: empty, *reads]
        unit = image.astype(jnp.float32) / 255
        return None, jax.lax.switch(number.astype(int), branches, unit, kind.astype(int), *more)

    names = (IMAGES, NETWORKS, KINDS, *further)
    return jax.lax.scan(one, None, tuple(inputs[name] for name in names))[1]


def used(network: Module) -> Module:
    """Return a ControlNet with its weights gathered, for the program that runs it."""
    graph, state = nnx.split(network)
    merged: Module = nnx.merge(graph, gathered(state))
    return merged


def residuals(
    runs: Sequence[Run],
    rows: PyTree,
    values: Mapping[str, Array],
    told: Sequence[Float[Array, "rows prompts ..."]],
) -> PyTree:
    """Return what the controls of all rows add to the steered network: [rows · prompts, ...] each.

    Scaled and summed as by diffusers' MultiControlNetModel. As many rows as a layout has parts of
    a batch run side by side, a part each; those that want another ControlNet wait for it.

    Args:
        runs: by network; all add to the same arrays.
        told: of each prompt: latents, time, and the steered network's conditions.
    """
    count, prompts = told[0].shape[:2]
    side_by_side = _parts(count, prompts)
    asked = (rows[HINTS], *(values[name] for name in (NETWORKS, KINDS, SCALES, PASSES, SEEN)))
    turns = jax.tree.map(partial(_by_turns, parts=side_by_side), (tuple(told), asked))

    def turn(_: None, group: Any) -> tuple[None, PyTree]:
        return None, _of_group(runs, *group)

    found = jax.lax.scan(turn, None, turns)[1]
    return jax.tree.map(lambda one: _in_order(one, side_by_side, prompts), found)


def _parts(rows: int, prompts: int) -> int:
    """Return over how many devices the rows of a batch are split, beside their prompts."""
    layout = trace_options().layout
    if layout is None:
        return 1
    (axes,) = layout.split(("batch",), (rows,))
    of_prompts = layout.table["prompts"] if prompts > 1 else ()
    return layout.devices(tuple(axis for axis in axes if axis not in of_prompts))


def _by_turns(x: Array, parts: int) -> Array:
    """Order [rows, ...] as [turns, parts, ...]: a part's rows follow each other in a batch."""
    return x.reshape(parts, -1, *x.shape[1:]).swapaxes(0, 1)


def _in_order(x: Array, parts: int, prompts: int) -> Array:
    """Undo `_by_turns` of [turns, parts · prompts, ...]: [rows · prompts, ...]."""
    rows = x.reshape(len(x), parts, prompts, *x.shape[2:]).swapaxes(0, 1)
    return rows.reshape(-1, *x.shape[2:])


def _of_group(runs: Sequence[Run], told: Sequence[Array], asked: Sequence[Array]) -> PyTree:
    """Return the sums of rows that run side by side.

    Each takes its slots in their order, whatever the others want: sums have an order.
    """
    hints_of_slots, numbers, kinds, scales, passes, seen = asked
    parts, prompts = told[0].shape[:2]
    flat = [x.reshape(-1, *x.shape[2:]) for x in told]
    rows = jnp.arange(parts)

    def run(one: Run, slot: Array, is_its: Array) -> PyTree:
        repeated = partial(jnp.repeat, repeats=prompts, axis=0)
        reads = passes == slot[:, None] + 1
        kind = jnp.where(reads, kinds.astype(int), NO_KIND)
        hint = _joined(hints_of_slots, reads & (seen > 0))
        added = one(*flat, repeated(hint), repeated(kind))
        scale, counts = repeated(scales[rows, slot]), repeated(is_its)
        return jax.tree.map(partial(_scaled, scale=scale, counts=counts), added)

    def step(state: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        waits, sums = state
        slot = jnp.argmax(waits, axis=1)
        wanted = jnp.where(waits.any(axis=1), numbers[rows, slot], 0).astype(int)
        number = wanted.max()
        is_its = wanted == number
        branches = [partial(run, one) for one in runs]
        added = jax.lax.switch(number - 1, branches, slot, is_its)
        done = is_its[:, None] & (jnp.arange(waits.shape[1]) == slot[:, None])
        return waits & ~done, jax.tree.map(jnp.add, sums, added)

    shapes = jax.eval_shape(partial(run, runs[0]), rows, rows > 0)
    sums = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    going: Callable[[Any], Array] = lambda state: state[0].any()  # noqa: E731
    return jax.lax.while_loop(going, step, (numbers > 0, sums))[1]


def only(kinds: Int[Array, "batch slots"]) -> Int[Array, " batch"]:
    """Return the kind of the one slot that a run reads."""
    return kinds.max(axis=1)


def _joined(hints: Float[Array, "rows slots ..."], seen: Bool[Array, "rows slots"]) -> Array:
    """Return the sum of the hints that are seen, in their slots' order."""
    alone = (
        jnp.where(seen[:, slot, *(None,) * (hints.ndim - 2)], hints[:, slot], 0)
        for slot in range(hints.shape[1])
    )
    return reduce(jnp.add, alone)


def _scaled(added: Array, scale: Array, counts: Array) -> Array:
    """Return what a network adds to rows, by their strengths; zeros for rows that it is not for."""
    scale, counts = (one[:, *(None,) * (added.ndim - 1)] for one in (scale, counts))
    return jnp.where(counts, added * scale.astype(added.dtype), 0)
