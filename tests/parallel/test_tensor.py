"""Convolutions split by channels: the numbers of one device, and a share of its work."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.stages import Compiled

from models.loading.abstract import abstract_module
from models.parallel.axis_rules import Layout
from models.parallel.placement import gather_for_use
from models.parallel.trace_options import TraceOptions
from models.sdxl.blocks import UNetResnetBlock
from models.sdxl.config import UNetConfig
from tests.parallel.layouts import layout

ROUNDING = 1e-5
"""Tolerance relative to the largest value: only the order of sums differs."""
FIRST = 24


@cache
def block(width: int, groups: int, kind: str) -> tuple[nnx.GraphDef, nnx.State]:
    """ResNet block from `width // 2` to `width` channels, with random values in all parameters."""
    config = UNetConfig(
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
        block_out_channels=(FIRST,) * 2,
        norm_num_groups=groups,
        resnet_time_scale_shift=kind,
    )
    module = abstract_module(UNetResnetBlock, width // 2, width, config, param_dtype=jnp.float32)
    graph, state = nnx.split(module)
    rng = np.random.default_rng(0)
    values = lambda leaf: leaf.replace(  # noqa: E731
        jnp.asarray(rng.normal(0, 0.3, leaf.shape), jnp.float32)
    )
    return graph, jax.tree.map(values, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def ran(by: Layout, width: int, *kind: Any) -> tuple[Compiled, np.ndarray]:
    """Compile and run the block for a layout; return the program and its output."""
    graph, state = block(width, *kind)
    place = lambda leaf: leaf.replace(  # noqa: E731
        jax.device_put(leaf[...], by.of_parameter("", leaf))
    )
    weights = jax.tree.map(place, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    rng = np.random.default_rng(1)
    everywhere = by.sharding((), ())
    inputs = [
        jax.device_put(rng.normal(size=shape).astype(np.float32), everywhere)
        for shape in ((2, 12, 12, width // 2), (2, 4 * FIRST))
    ]

    def run(weights: nnx.State, *inputs: jax.Array) -> jax.Array:
        with TraceOptions(by).active():
            return nnx.merge(graph, gather_for_use(weights))(*inputs)

    program = jax.jit(run, out_shardings=everywhere).lower(weights, *inputs).compile()
    return program, np.asarray(program(weights, *inputs))


@pytest.mark.parametrize(
    "sizes",
    [{"context": 2, "tensor": 2}, {"cfg": 2, "tensor": 2}, {"context": 2, "ring": 2, "tensor": 4}],
    ids=str,
)
def test_rows_and_channels_may_both_be_split(sizes: dict[str, int]) -> None:
    """XLA's own partitioner duplicates the 32 channels if two devices share their rows."""
    _, expected = ran(layout(), 32, 4, "default")
    _, output = ran(layout(**sizes), 32, 4, "default")
    assert np.abs(output - expected).max() < ROUNDING * np.abs(expected).max()


@pytest.mark.parametrize(
    ("width", "groups", "kind", "share"),
    [
        (64, 8, "default", 1 / 8),
        (64, 8, "scale_shift", 1 / 8),
        (64, 4, "default", 1 / 8),
        (48, 6, "default", 1 / 8),
        (36, 6, "default", 1),
    ],
    ids=["groups apart", "scale and shift", "shared groups", "groups across", "do not divide"],
)
def test_a_block_over_eight_devices_is_the_block_of_one(
    width: int, groups: int, kind: str, share: float
) -> None:
    """Norm groups may span devices or not. Channels that do not divide stay whole."""
    single, expected = ran(layout(), width, groups, kind)
    split, output = ran(layout(tensor=8), width, groups, kind)
    assert np.abs(output - expected).max() < ROUNDING * np.abs(expected).max()
    work = split.cost_analysis()["flops"] / single.cost_analysis()["flops"]
    assert share * 0.95 < work < share * 1.2


def test_sharded_group_norm_needs_no_communication() -> None:
    """The only communication is two sums of outputs: the second convolution's and its
    shortcut's.
    """
    split, _ = ran(layout(tensor=8), 64, 8, "default")
    text = split.as_text()
    assert text.count(" all-reduce(") <= 2
    assert " all-gather(" not in text
