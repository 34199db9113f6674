"""Pictures in strips: the numbers of the whole picture, whatever the layer."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh

from models.nn.abstract import abstract_module
from models.nn.attention.xla import xla_kernel
from models.sharding import MESH_AXES, Layout
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from models.vae.strips import cut_up, fitting, for_layout, in_strips, put_together
from tests import coarse
from tests.parallel.layouts import layout

ROUNDING = 1e-5
"""Of the largest value: sums in another order, some twenty layers deep."""
COUNT = 4


def image() -> nnx.Module:
    config = VaeConfig(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 12),
        norm_num_groups=4,
        latent_channels=3,
    )
    return drawn(abstract_module(AutoencoderKL, config))


def drawn(module: nnx.Module) -> nnx.Module:
    """With random weights that keep activations near one."""
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
def test_strips_make_the_whole_picture(name: str) -> None:
    make, method, shape = CASES[name]
    graph, state = nnx.split(make())
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)

    def run(count: int) -> np.ndarray:
        def in_them(state: nnx.State, x: jax.Array) -> jax.Array:
            with in_strips(count):
                return put_together(method(nnx.merge(graph, state))(cut_up(x)))

        return np.asarray(jax.jit(in_them).lower(state, x).compile(coarse.OPTIONS)(state, x))

    whole = run(1)
    np.testing.assert_allclose(run(COUNT), whole, rtol=0, atol=ROUNDING * np.abs(whole).max())


def test_a_picture_comes_back_as_it_was() -> None:
    x = np.random.default_rng(4).normal(size=(2, 4, 8, 5)).astype(np.float32)
    with in_strips(COUNT):
        strips = cut_up(jnp.asarray(x))
        assert strips.shape == (8, 4, 2, 5)
        np.testing.assert_array_equal(strips[1], x[0, :, 2:4])
        np.testing.assert_array_equal(put_together(strips), x)


def test_devices_share_strips_and_rows() -> None:
    graph, state = nnx.split(image())
    x = np.random.default_rng(5).normal(size=(1, 5, 16, 3)).astype(np.float32)
    rows, columns = ("tensor",), ("ulysses",)
    here = {"picture_rows": rows, "picture_columns": columns, "positions": rows + columns}
    by = layout(context=4, tensor=2)
    by = replace(by, table={**by.table, **here})

    def run(state: nnx.State, x: jax.Array) -> jax.Array:
        with in_strips(8):
            return put_together(nnx.merge(graph, state).decoder(cut_up(x)))

    def over_devices(state: nnx.State, x: jax.Array) -> jax.Array:
        with by.active():
            return run(state, x)

    whole, shared = (
        np.asarray(jax.jit(one).lower(state, x).compile(coarse.OPTIONS)(state, x))
        for one in (run, over_devices)
    )
    np.testing.assert_allclose(shared, whole, rtol=0, atol=ROUNDING * np.abs(whole).max())


@pytest.mark.parametrize(
    ("width", "devices", "count"),
    [(128, 1, 8), (104, 1, 8), (90, 1, 1), (128, 2, 16), (104, 8, 1), (8, 2, 1)],
)
def test_strips_come_out_even(width: int, devices: int, count: int) -> None:
    assert fitting("tpu", width, devices) == count
    assert fitting("cpu", width, devices) == fitting("gpu", width, devices) == 1


def test_no_strips_where_no_tpu_is() -> None:
    assert for_layout(layout(), 128, ()) == 1
    nowhere = AbstractMesh((1,) * len(MESH_AXES), MESH_AXES)
    assert for_layout(Layout(nowhere, xla_kernel), 128, ()) == 1
