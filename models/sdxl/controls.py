"""Controls of rows: their images into hints as a row begins, their ControlNets' sums in each step.

Rows and their slots for controls run one by one, each by the ControlNet that it names, so that a
batch may mix any of them with none, a row's numbers are its own, and a slot that is empty or out
of its steps costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.interface.controls import RequestedControl
from models.interface.pipeline import PyTree, Step
from models.parallel.placement import gathered
from models.parallel.trace_options import trace_options
from models.sdxl.controlnet import ControlNet
from models.sdxl.network import Residuals
from models.sdxl.refining import REFINER

NETWORKS, KINDS, SCALES = "control_networks", "control_kinds", "control_scales"
"""Values of a step, float32 [slots]: ControlNet by number, where 0 is none; kind of a union's
control; strength."""
IMAGES = "control_images"
"""Input of `encode` beside networks and kinds: uint8 [slots, height, width, 3]."""
HINTS = "hints"
"""Leaf of a row: [slots, h, w, first]."""


@dataclass(frozen=True)
class ControlPlaces:
    """Places of a model's controls: how many one row has, and which network reads which."""

    slots: int
    by_name: Mapping[str, tuple[int, int]]
    """Number of the network, from 1, and kind of control, by the name in requests."""
    work: Mapping[str, float]
    """Work of one step of each, as a share of the UNet's."""

    def inputs(self, controls: Sequence[RequestedControl]) -> dict[str, np.ndarray]:
        """Return the inputs of `encode`; none without controls."""
        if not controls:
            return {}
        images = np.zeros((self.slots, *controls[0].pixels.shape), np.uint8)
        images[: len(controls)] = [control.pixels for control in controls]
        return {IMAGES: images, **self._columns(controls, [1.0] * len(controls))}

    def steps(
        self, steps: Sequence[Step], controls: Sequence[RequestedControl]
    ) -> tuple[Step, ...]:
        """Return the steps with what each is told of the controls."""
        if not self.slots:
            return tuple(steps)
        return tuple(
            replace(
                step,
                values={**step.values, **self._columns(controls, scales)},
                work=step.work + self._work(controls, scales),
            )
            for number, step in enumerate(steps)
            for scales in [self._scales(step, number, len(steps), controls)]
        )

    def _scales(
        self, step: Step, number: int, count: int, controls: Sequence[RequestedControl]
    ) -> list[float]:
        """Return the controls' strengths in a step; a refiner's has none."""
        if step.phase.network == REFINER:
            return [0.0] * len(controls)
        return [control.scale_at(number, count) for control in controls]

    def _work(self, controls: Sequence[RequestedControl], scales: Sequence[float]) -> float:
        pairs = zip(controls, scales, strict=True)
        return sum((self.work[control.name] for control, scale in pairs if scale), 0.0)

    def _columns(
        self, controls: Sequence[RequestedControl], scales: Sequence[float]
    ) -> dict[str, np.ndarray]:
        columns = {name: np.zeros(self.slots, np.float32) for name in (NETWORKS, KINDS, SCALES)}
        for slot, (control, scale) in enumerate(zip(controls, scales, strict=True)):
            if scale:
                network, kind = self.by_name[control.name]
                columns[NETWORKS][slot], columns[KINDS][slot] = network, kind
                columns[SCALES][slot] = scale
        return columns


NO_CONTROLS = ControlPlaces(0, {}, {})


def hints(
    networks: nnx.List, inputs: Mapping[str, jax.Array], slots: int, latents: Float[Array, "h w c"]
) -> Float[Array, "slots h w first"]:
    """Return what steps are given of a row's control images; zeros in empty slots.

    Args:
        networks: ControlNets, as they lie on the devices.
    """
    first = networks[0].conv_in
    shape = (*latents.shape[:2], first.out_features)
    empty = jnp.zeros(shape, used(networks[0]).conv_in.kernel.dtype)
    if IMAGES not in inputs:
        return jnp.broadcast_to(empty, (slots, *shape))

    def of(network: ControlNet, image: Array, kind: Array) -> Array:
        return used(network).hint(image[None], kind[None])[0].astype(empty.dtype)

    def one(_: None, slot: Any) -> tuple[None, Array]:
        image, number, kind = slot
        branches: list[Callable[..., Array]] = [lambda *_: empty]
        branches += [partial(of, network) for network in networks]
        unit = image.astype(jnp.float32) / 255
        return None, jax.lax.switch(number.astype(int), branches, unit, kind.astype(int))

    return jax.lax.scan(one, None, (inputs[IMAGES], inputs[NETWORKS], inputs[KINDS]))[1]


def used(network: ControlNet) -> ControlNet:
    """Return a ControlNet with its weights gathered, for the program that runs it."""
    graph, state = nnx.split(network)
    merged: ControlNet = nnx.merge(graph, gathered(state))
    return merged


def residuals(
    networks: nnx.List,
    rows: PyTree,
    values: Mapping[str, jax.Array],
    told: Sequence[Float[Array, "rows prompts ..."]],
) -> Residuals:
    """Return what the controls of all rows add to the UNet's states, [rows · prompts, h, w, c].

    Scaled and summed as by diffusers' MultiControlNetModel. As many rows as a layout has parts of
    a batch run side by side, a part each; those that want another ControlNet wait for it.

    Args:
        networks: ControlNets, as they lie on the devices.
        told: of each prompt: latents, time, and the UNet's conditions.
    """
    count, prompts = told[0].shape[:2]
    side_by_side = _parts(count, prompts)
    asked = (rows[HINTS], values[NETWORKS], values[KINDS], values[SCALES])
    turns = jax.tree.map(partial(_by_turns, parts=side_by_side), (tuple(told), asked))

    def turn(_: None, group: Any) -> tuple[None, Residuals]:
        return None, _of_group(networks, *group)

    found: Residuals = jax.lax.scan(turn, None, turns)[1]
    return tuple(_in_order(one, side_by_side, prompts) for one in found)


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


def _of_group(networks: nnx.List, told: Sequence[Array], asked: Sequence[Array]) -> Residuals:
    """Return the sums of rows that run side by side.

    Each takes its slots in their order, whatever the others want: sums have an order.
    """
    hint, numbers, kinds, scales = asked
    parts, prompts = told[0].shape[:2]
    flat = [x.reshape(-1, *x.shape[2:]) for x in told]
    rows = jnp.arange(parts)

    def run(network: ControlNet, slot: Array, is_its: Array) -> Residuals:
        repeated = partial(jnp.repeat, repeats=prompts, axis=0)
        kind = repeated(kinds[rows, slot].astype(int))
        run_on: Any = used(network)
        added = run_on(*flat, repeated(hint[rows, slot]), kind)
        scale, counts = (repeated(x)[:, None, None, None] for x in (scales[rows, slot], is_its))
        return tuple(jnp.where(counts, one * scale.astype(one.dtype), 0) for one in added)

    def step(state: tuple[Array, Residuals]) -> tuple[Array, Residuals]:
        waits, sums = state
        slot = jnp.argmax(waits, axis=1)
        wanted = jnp.where(waits.any(axis=1), numbers[rows, slot], 0).astype(int)
        number = wanted.max()
        is_its = wanted == number
        branches = [partial(run, network) for network in networks]
        added = jax.lax.switch(number - 1, branches, slot, is_its)
        done = is_its[:, None] & (jnp.arange(waits.shape[1]) == slot[:, None])
        return waits & ~done, tuple(a + b for a, b in zip(sums, added, strict=True))

    shapes = jax.eval_shape(partial(run, networks[0]), rows, rows > 0)
    sums = tuple(jnp.zeros(shape.shape, shape.dtype) for shape in shapes)
    going: Callable[[Any], Array] = lambda state: state[0].any()  # noqa: E731
    return jax.lax.while_loop(going, step, (numbers > 0, sums))[1]  # type: ignore[no-any-return]
