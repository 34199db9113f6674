"""Every layout divides the work, the weights or both, as the compiled programs show.

Tests of images would not detect a layout that computes everything everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.stages import Compiled

from models.flux.config import FluxConfig
from models.flux.latents import image_ids
from models.flux.network import FluxTransformer
from models.loading.abstract import abstract_module
from models.parallel.placement import gather_for_use
from models.parallel.trace_options import TraceOptions
from models.sdxl.config import UNetConfig
from models.sdxl.network import UNet
from models.wan.config import WanConfig
from models.wan.network import WanTransformer
from tests.parallel.layouts import layout

HEADS, ROWS = 8, 2
TEXT, SIDE = 16, 32
"""Token counts that divide evenly. Padding would increase a device's share a little."""

Program = Callable[..., Any]


def flux() -> tuple[nnx.Module, Program, list[tuple[int, ...]]]:
    config = FluxConfig(
        in_channels=8,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=HEADS,
        joint_attention_dim=24,
        pooled_projection_dim=16,
        guidance_embeds=False,
        axes_dims_rope=(4, 4, 8),
    )
    ids = image_ids(2 * SIDE, 2 * SIDE), np.zeros((TEXT, 3), int)
    shapes = [(ROWS, SIDE**2, 8), (ROWS, TEXT, 24), (ROWS, 16), (ROWS,)]
    module = abstract_module(FluxTransformer, config)
    return module, lambda network, *x: network(*x, None, *ids), shapes


def wan() -> tuple[nnx.Module, Program, list[tuple[int, ...]]]:
    config = WanConfig(
        num_attention_heads=HEADS,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=24,
        freq_dim=32,
        ffn_dim=256,
        num_layers=2,
    )
    shapes = [(ROWS, 2, SIDE, 2 * SIDE, 4), (ROWS,), (ROWS, TEXT, 24)]
    module = abstract_module(WanTransformer, config)
    return module, lambda network, *x: network(*x), shapes


def sdxl() -> tuple[nnx.Module, Program, list[tuple[int, ...]]]:
    config = UNetConfig(
        down_block_types=("CrossAttnDownBlock2D",) * 2,
        up_block_types=("CrossAttnUpBlock2D",) * 2,
        block_out_channels=(32, 64),
        attention_head_dim=HEADS,
        norm_num_groups=8,
        cross_attention_dim=24,
        layers_per_block=1,
    )
    shapes = [(ROWS, SIDE, SIDE, 4), (ROWS,), (ROWS, TEXT, 24)]
    module = abstract_module(UNet, config)
    return module, lambda network, *x: network(*x), shapes


WIDTHS = {"flux": 128, "wan": 128, "sdxl": 32}
"""Width of a token's keys over all heads; for SDXL, on the level with most tokens."""
FAMILIES = {"flux": flux, "wan": wan, "sdxl": sdxl}


@cache
def compiled(family: str, **sizes: int) -> Compiled:
    """Compile one call of the family's network for two rows, with weights placed by the layout."""
    by = layout(**sizes)
    module, call, shapes = FAMILIES[family]()
    graph, state = nnx.split(module)

    def place(leaf: nnx.Variable) -> nnx.Variable:
        place = by.of_parameter("", leaf)
        return leaf.replace(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place))

    weights = jax.tree.map(place, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    inputs = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=by.sharding((None,) * len(shape), shape))
        for shape in shapes
    ]

    def run(weights: nnx.State, *inputs: jax.Array) -> jax.Array:
        with TraceOptions(by).active():
            return call(nnx.merge(graph, gather_for_use(weights)), *inputs)

    return jax.jit(run).lower(weights, *inputs).compile()


def work(program: Compiled) -> float:
    """Floating-point operations of one device. The body of a loop counts once."""
    return float(program.cost_analysis()["flops"])


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(family: str) -> Compiled:
    return compiled(family)


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ({"data": 2}, 1 / 2),
        ({"cfg": 2}, 1 / 2),
        ({"context": 4}, 1 / 4),
        ({"context": 4, "ring": 4}, 1 / 4),
        ({"fsdp": 8}, 1 / 8),
        ({"tensor": 8}, 1 / 8),
        ({"cfg": 2, "context": 4, "ring": 2}, 1 / 8),
    ],
    ids=str,
)
def test_each_device_has_its_share_of_the_work(
    sizes: dict[str, int], share: float, family: str, whole: Compiled
) -> None:
    """The share is slightly larger: all devices embed time and text, and merge results."""
    part = work(compiled(family, **sizes)) / work(whole)
    assert share * 0.95 <= part <= share * 1.3


def test_weights_are_split_into_eighths(family: str, whole: Compiled) -> None:
    part = compiled(family, fsdp=8).memory_analysis().argument_size_in_bytes
    assert part < 0.2 * whole.memory_analysis().argument_size_in_bytes


def test_ring_attention_gathers_no_keys(family: str) -> None:
    """Every gathered array is smaller than the keys of one row."""
    text = compiled(family, context=4, ring=4).as_text()
    gathers = re.findall(r"= \(?\w+\[([\d,]*)\][^=]*? all-gather(?:-start)?\(", text)
    sizes = [np.prod([int(size) for size in shape.split(",") if size]) for shape in gathers]
    assert all(size < SIDE**2 * WIDTHS[family] for size in sizes)
    assert "collective-permute" in text
