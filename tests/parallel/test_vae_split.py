"""Autoencoders split over all devices of a slice: one device's numbers, and a share of its work."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.stages import Compiled

from models.parallel.axis_rules import Layout, MeshAxes
from models.parallel.placement import gather_for_use
from models.parallel.trace_options import TraceOptions
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from models.vae.sharded import choose_image_axes
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from tests import coarse
from tests.parallel.layouts import layout

MIN_DB = 100.0
"""PSNR by the largest value; 255 pixel levels need 60 dB. Rounding alone leaves 110 dB or more."""
MAX_WORK, MAX_MEMORY = 0.14, 0.2
"""Share of one device's work and memory with eight devices.

The excess over 1/8 is rows that do not divide; for small images also weights and edges.
"""


class Case(NamedTuple):
    """An autoencoder, and functions that return its input shapes for rows and columns of
    latents.
    """

    make: Callable[[], nnx.Module]
    latents: Callable[[int, int], tuple[int, ...]]
    pixels: Callable[[int, int], tuple[int, ...]]


def image() -> nnx.Module:
    config = VaeConfig(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return AutoencoderKL(config, rngs=nnx.Rngs(0))


def video(**overrides: Any) -> nnx.Module:
    config = VideoVaeConfig(
        base_dim=8,
        z_dim=4,
        num_res_blocks=1,
        latents_mean=(0.0,) * 4,
        latents_std=(1.0,) * 4,
        temperal_downsample=(True,),
        **{"dim_mult": (1, 2), **overrides},
    )
    return VideoAutoencoder(config, rngs=nnx.Rngs(0))


def wan_2_2() -> nnx.Module:
    shortcuts = {"is_residual": True, "dim_mult": (1, 1)}
    return video(patch_size=2, in_channels=12, out_channels=12, **shortcuts)


CASES = {
    "image": Case(image, lambda h, w: (1, h, w, 4), lambda h, w: (1, 2 * h, 2 * w, 3)),
    "wan 2.1": Case(video, lambda h, w: (1, 3, h, w, 4), lambda h, w: (1, 5, 2 * h, 2 * w, 3)),
    "wan 2.2": Case(wan_2_2, lambda h, w: (1, 3, h, w, 4), lambda h, w: (1, 5, 4 * h, 4 * w, 3)),
}
CALLS: dict[str, Callable[..., jax.Array]] = {
    "decode": lambda vae, latents: vae.decode(latents),
    "encode": lambda vae, pixels: jnp.concatenate(vae.encode(pixels), axis=-1),
}


@cache
def network(name: str) -> tuple[nnx.GraphDef, nnx.State]:
    """Abstract module of a case, with random weights that keep activations near 1."""
    rng = np.random.default_rng(0)

    def drawn(leaf: nnx.Variable) -> nnx.Variable:
        spread = 1.0 if leaf.ndim == 1 else np.prod(leaf.shape[:-1]) ** -0.5
        return leaf.replace(jnp.asarray(rng.normal(0, spread, leaf.shape), leaf.dtype))

    graph, state = nnx.split(nnx.eval_shape(CASES[name].make))
    is_leaf = lambda leaf: isinstance(leaf, nnx.Variable)  # noqa: E731
    return graph, jax.tree.map(drawn, state, is_leaf=is_leaf)


def ran(name: str, call: str, by: Layout, x: np.ndarray) -> tuple[Compiled, np.ndarray]:
    """Compile and run a call of the autoencoder for a layout; return the program and its output."""
    graph, state = network(name)
    place = lambda leaf: leaf.replace(  # noqa: E731
        jax.device_put(leaf[...], by.of_parameter("", leaf))
    )
    weights = jax.tree.map(place, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    sharding = by.sharding((None,) * x.ndim, x.shape)

    def run(weights: nnx.State, x: jax.Array) -> jax.Array:
        with TraceOptions(by).active():
            return CALLS[call](nnx.merge(graph, gather_for_use(weights)), x)

    x = jax.device_put(x, sharding)
    program = jax.jit(run, out_shardings=sharding).lower(weights, x).compile(coarse.OPTIONS)
    return program, np.asarray(program(weights, x))


def decibels(output: np.ndarray, expected: np.ndarray) -> float:
    return float(20 * np.log10(np.abs(expected).max() / np.abs(output - expected).max()))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("name", "sides", "sizes"),
    [
        ("image", (48, 40), {"context": 8}),
        ("image", (49, 37), {"data": 2, "cfg": 2, "tensor": 2}),
        ("wan 2.1", (33, 37), {"fsdp": 8}),
        ("wan 2.2", (15, 24), {"context": 4, "ring": 2, "tensor": 2}),
    ],
    ids=str,
)
def test_vae_on_eight_devices_matches_one_device(
    name: str, sides: tuple[int, int], sizes: dict[str, int], call: str
) -> None:
    """No device has much more than an eighth of the work or of the memory."""
    shape = (CASES[name].latents if call == "decode" else CASES[name].pixels)(*sides)
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    single, expected = ran(name, call, layout(), x)
    split, output = ran(name, call, layout(**sizes), x)
    assert decibels(output, expected) > MIN_DB
    assert work(split) < MAX_WORK * work(single)
    assert memory(split) < MAX_MEMORY * memory(single)


@pytest.mark.parametrize(
    ("sides", "sizes", "rows", "columns"),
    [
        ((128, 128), {"context": 8}, ("ulysses",), ()),
        ((60, 104), {"context": 8}, (), ("ulysses",)),
        ((60, 90), {"data": 2, "context": 4}, ("data",), ("ulysses",)),
        ((5, 4), {"fsdp": 2, "tensor": 4}, ("fsdp",), ("tensor",)),
        ((3, 3), {"context": 8}, (), ()),
    ],
    ids=str,
)
def test_image_axes_minimize_the_largest_share(
    sides: tuple[int, int], sizes: dict[str, int], rows: MeshAxes, columns: MeshAxes
) -> None:
    assert choose_image_axes(layout(**sizes), *sides) == (rows, columns)


def work(program: Compiled) -> float:
    return float(program.cost_analysis()["flops"])


def memory(program: Compiled) -> int:
    return int(program.memory_analysis().temp_size_in_bytes)
