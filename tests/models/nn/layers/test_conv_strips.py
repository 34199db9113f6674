"""Convolution layers over an image in strips give the numbers of the whole image."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.loading.abstract import abstract_module
from models.nn.kernels.xla import xla_kernel
from models.nn.layers.conv_strips import (
    fitting,
    for_batch,
    for_layout,
    join_strips,
    split_strips,
    strips_at_once,
)
from models.parallel.axis_rules import Layout, abstract_mesh
from models.parallel.mesh_axes import MESH_AXES
from models.parallel.trace_options import TraceOptions
from models.sdxl.config import UNetConfig
from models.sdxl.network import Conditioning, UNet
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from tests import coarse
from tests.models.sdxl.test_config import SDXL_BASE
from tests.parallel.layouts import layout

ROUNDING = 1e-5
"""Tolerance relative to the largest value: sums in another order, about twenty layers deep."""
COUNT = 4
TIME = 32
"""Size of the time embedding: four times the first level's channels."""


Module = TypeVar("Module", bound=nnx.Module)


def image() -> AutoencoderKL:
    config = VaeConfig(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 12),
        norm_num_groups=4,
        latent_channels=3,
    )
    return drawn(abstract_module(AutoencoderKL, config))


def drawn(module: Module) -> Module:
    """Fill a module with random weights that keep activations near 1."""
    rng = np.random.default_rng(0)
    graph, state = nnx.split(module)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        spread = 1.0 if leaf.ndim == 1 else np.prod(leaf.shape[:-1]) ** -0.5
        return rng.normal(0, spread, leaf.shape).astype(leaf.dtype)

    return nnx.merge(graph, jax.tree.map(draw, state))


CASES = {
    "pixels": (image, lambda vae: vae.decoder, (2, 5, 8, 3)),
    "latents": (image, lambda vae: vae.encoder, (2, 10, 16, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_strips_join_to_the_full_image(name: str) -> None:
    make, method, shape = CASES[name]
    graph, state = nnx.split(make())
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)

    def run(count: int) -> np.ndarray:
        def in_them(state: nnx.State, x: jax.Array) -> jax.Array:
            with TraceOptions(strips=count).active():
                return join_strips(method(nnx.merge(graph, state))(split_strips(x)))

        return np.asarray(jax.jit(in_them).lower(state, x).compile(coarse.OPTIONS)(state, x))

    expected = run(1)
    np.testing.assert_allclose(run(COUNT), expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


def unet() -> UNet:
    config = UNetConfig.from_dict(
        SDXL_BASE
        | {
            "block_out_channels": [8, 12, 16],
            "attention_head_dim": [1, 2, 2],
            "transformer_layers_per_block": [1, 1, 1],
            "norm_num_groups": 4,
            "cross_attention_dim": 6,
            "addition_time_embed_dim": 4,
            "projection_class_embeddings_input_dim": 6 * 4 + 5,
        }
    )
    network = drawn(abstract_module(UNet, config))
    assert isinstance(network, UNet)
    return network


def test_network_over_strips_matches_the_full_image() -> None:
    """Covers every level: downsampling, upsampling, skip connections and transformers."""
    graph, state = nnx.split(unet())
    shapes = ((2, 9, 16, 4), (2, TIME), (2, 5, 6))
    rng = np.random.default_rng(6)
    inputs = [rng.normal(size=shape).astype(np.float32) for shape in shapes]

    def run(count: int) -> np.ndarray:
        def in_them(state: nnx.State, x: jax.Array, time: jax.Array, text: jax.Array) -> jax.Array:
            with TraceOptions(strips=count).active():
                levels = nnx.merge(graph, state).through_levels
                return join_strips(levels(split_strips(x), Conditioning(time, text)))

        return np.asarray(
            jax.jit(in_them).lower(state, *inputs).compile(coarse.OPTIONS)(state, *inputs)
        )

    expected = run(1)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(run(COUNT), expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


def test_joining_inverts_splitting() -> None:
    x = np.random.default_rng(4).normal(size=(2, 4, 8, 5)).astype(np.float32)
    with TraceOptions(strips=COUNT).active():
        strips = split_strips(jnp.asarray(x))
        assert strips.shape == (8, 4, 2, 5)
        np.testing.assert_array_equal(strips[1], x[0, :, 2:4])
        np.testing.assert_array_equal(join_strips(strips), x)


def test_devices_share_strips_and_rows() -> None:
    graph, state = nnx.split(image())
    x = np.random.default_rng(5).normal(size=(1, 5, 16, 3)).astype(np.float32)
    rows, columns = ("tensor",), ("ulysses",)
    axes_of_positions = {
        "image_rows": rows,
        "image_columns": columns,
        "positions": rows + columns,
    }
    by = layout(context=4, tensor=2)
    by = replace(by, table={**by.table, **axes_of_positions})

    def run(by: Layout | None) -> np.ndarray:
        def in_them(state: nnx.State, x: jax.Array) -> jax.Array:
            with TraceOptions(by, strips=8).active():
                return join_strips(nnx.merge(graph, state).decoder(split_strips(x)))

        return np.asarray(jax.jit(in_them).lower(state, x).compile(coarse.OPTIONS)(state, x))

    expected, shared = run(None), run(by)
    np.testing.assert_allclose(shared, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


@pytest.mark.parametrize(
    ("width", "devices", "count"),
    [(128, 1, 8), (104, 1, 8), (90, 1, 1), (128, 2, 16), (104, 8, 1), (8, 2, 1)],
)
def test_strips_divide_the_width_evenly(width: int, devices: int, count: int) -> None:
    assert fitting("tpu", width, devices) == count
    assert fitting("cpu", width, devices) == fitting("gpu", width, devices) == 1


@pytest.mark.parametrize(
    ("pictures", "width", "count"),
    [(1, 32, 8), (2, 32, 4), (3, 32, 2), (8, 32, 1), (16, 32, 1), (2, 38, 2), (2, 31, 1)],
)
def test_several_images_share_the_rows(pictures: int, width: int, count: int) -> None:
    assert strips_at_once(pictures, width) == count


def test_no_strips_where_no_tpu_is() -> None:
    assert (
        for_layout(layout(), 128, ()) == for_batch(layout(), 2, 32) == for_batch(None, 2, 32) == 1
    )
    nowhere = abstract_mesh((1,) * len(MESH_AXES))
    assert for_layout(Layout(nowhere, xla_kernel), 128, ()) == 1
