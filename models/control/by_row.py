"""ControlNets in batches: hints when a row begins, and summed residuals in each step.

Each slot of each row runs separately with its own ControlNet. A batch can thus mix ControlNets, and
rows without any. A row's results depend only on its own controls. Slots that are empty or outside
their step range cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Shaped

from models.control.slots import IMAGES, KINDS, NETWORKS, RUN_SLOTS, SCALES, VISIBLE
from models.interface.pipeline import PyTree
from models.parallel.placement import gather_for_use
from models.parallel.trace_options import trace_options

HINTS = "hints"
"""Leaf of a row with its encoded control images: [slots, ...]."""
NO_KIND = -1
"""Kind in slots that a run does not read."""

Module = TypeVar("Module", bound=nnx.Module)
Read = Callable[..., Array]
"""Encoder of a control image by a ControlNet: (image in [0, 1], kind, additional inputs) → hint."""
Run = Callable[..., PyTree]
"""ControlNet: (network inputs, hints, kinds by slot) → arrays [rows · prompts, ...]."""


def hints(
    reads: Sequence[Read],
    inputs: Mapping[str, Array],
    slots: int,
    empty: Float[Array, ...],
    *further: str,
) -> Float[Array, "slots ..."]:
    """Encode a row's control images to hints for the steps; `empty` in empty slots.

    Args:
        reads: encoders by network.
        empty: hint of an empty slot.
        further: additional inputs by slot that networks read.
    """
    if IMAGES not in inputs:
        return jnp.broadcast_to(empty, (slots, *empty.shape))

    def encode(_: None, slot: Any) -> tuple[None, Array]:
        image, number, kind, *more = slot
        branches: list[Read] = [lambda *_: empty, *reads]
        unit = image.astype(jnp.float32) / 255
        return None, jax.lax.switch(number.astype(int), branches, unit, kind.astype(int), *more)

    names = (IMAGES, NETWORKS, KINDS, *further)
    return jax.lax.scan(encode, None, tuple(inputs[name] for name in names))[1]


def gathered_network(network: Module) -> Module:
    """Return a ControlNet with its sharded weights gathered, for the program that runs it."""
    graph, state = nnx.split(network)
    merged: Module = nnx.merge(graph, gather_for_use(state))
    return merged


def residuals(
    runs: Sequence[Run],
    rows: PyTree,
    values: Mapping[str, Array],
    inputs: Sequence[Shaped[Array, "rows prompts ..."]],
) -> PyTree:
    """Return the residuals of all rows' controls for the controlled network: [rows · prompts, ...].

    Scaled and summed as in diffusers' MultiControlNetModel. The layout's batch parts each run one
    row at a time, in parallel. Rows with different ControlNets wait for each other.

    Args:
        runs: by network; all produce arrays of the same shapes.
        inputs: by prompt: latents, time, and the controlled network's conditions.
    """
    count, prompts = inputs[0].shape[:2]
    parallel = _parts(count, prompts)
    controls = (
        rows[HINTS],
        *(values[name] for name in (NETWORKS, KINDS, SCALES, RUN_SLOTS, VISIBLE)),
    )
    groups = jax.tree.map(partial(_in_groups, parts=parallel), (tuple(inputs), controls))

    def run_group(_: None, group: Any) -> tuple[None, PyTree]:
        return None, _of_group(runs, *group)

    sums = jax.lax.scan(run_group, None, groups)[1]
    return jax.tree.map(lambda array: _in_order(array, parallel, prompts), sums)


def _parts(rows: int, prompts: int) -> int:
    """Return the number of devices that split the rows of a batch, excluding the prompts' axes."""
    layout = trace_options().layout
    if layout is None:
        return 1
    (axes,) = layout.split(("batch",), (rows,))
    of_prompts = layout.table["prompts"] if prompts > 1 else ()
    return layout.devices(tuple(axis for axis in axes if axis not in of_prompts))


def _in_groups(x: Array, parts: int) -> Array:
    """Reorder rows [rows, ...] to [groups, parts, ...]; consecutive rows share a part."""
    return x.reshape(parts, -1, *x.shape[1:]).swapaxes(0, 1)


def _in_order(x: Array, parts: int, prompts: int) -> Array:
    """Invert `_in_groups` for [groups, parts · prompts, ...]: [rows · prompts, ...]."""
    rows = x.reshape(len(x), parts, prompts, *x.shape[2:]).swapaxes(0, 1)
    return rows.reshape(-1, *x.shape[2:])


def _of_group(runs: Sequence[Run], inputs: Sequence[Array], controls: Sequence[Array]) -> PyTree:
    """Return the residual sums of rows that run in parallel.

    Each row adds its slots in order, independent of other rows, since float sums depend on the
    order.
    """
    hints_of_slots, numbers, kinds, scales, passes, visible = controls
    parts, prompts = inputs[0].shape[:2]
    flat = [x.reshape(-1, *x.shape[2:]) for x in inputs]
    rows = jnp.arange(parts)

    def run(network: Run, slot: Array, is_selected: Array) -> PyTree:
        repeated = partial(jnp.repeat, repeats=prompts, axis=0)
        reads = passes == slot[:, None] + 1
        kind = jnp.where(reads, kinds.astype(int), NO_KIND)
        hint = _joined(hints_of_slots, reads & (visible > 0))
        added = network(*flat, repeated(hint), repeated(kind))
        scale, counts = repeated(scales[rows, slot]), repeated(is_selected)
        return jax.tree.map(partial(_scaled, scale=scale, counts=counts), added)

    def step(state: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        waits, sums = state
        slot = jnp.argmax(waits, axis=1)
        requested = jnp.where(waits.any(axis=1), numbers[rows, slot], 0).astype(int)
        number = requested.max()
        is_selected = requested == number
        branches = [partial(run, network) for network in runs]
        added = jax.lax.switch(number - 1, branches, slot, is_selected)
        done = is_selected[:, None] & (jnp.arange(waits.shape[1]) == slot[:, None])
        return waits & ~done, jax.tree.map(jnp.add, sums, added)

    shapes = jax.eval_shape(partial(run, runs[0]), rows, rows > 0)
    sums = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    going: Callable[[Any], Array] = lambda state: state[0].any()  # noqa: E731
    return jax.lax.while_loop(going, step, (numbers > 0, sums))[1]


def single_kind(kinds: Int[Array, "batch slots"]) -> Int[Array, " batch"]:
    """Return the kind of control image of the only slot that a union ControlNet's run reads."""
    return kinds.max(axis=1)


def _joined(hints: Float[Array, "rows slots ..."], visible: Bool[Array, "rows slots"]) -> Array:
    """Return the sum of the visible control hints, in slot order."""
    alone = (
        jnp.where(visible[:, slot, *(None,) * (hints.ndim - 2)], hints[:, slot], 0)
        for slot in range(hints.shape[1])
    )
    return reduce(jnp.add, alone)


def _scaled(added: Array, scale: Array, counts: Array) -> Array:
    """Scale a network's residuals by row; zeros for rows that use another network."""
    scale, counts = (column[:, *(None,) * (added.ndim - 1)] for column in (scale, counts))
    return jnp.where(counts, added * scale.astype(added.dtype), 0)
