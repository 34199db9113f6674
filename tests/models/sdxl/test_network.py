"""SDXL's UNet at full size with abstract shapes, half precision, and its small parts."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.embeddings import get_timestep_embedding
from flax import nnx

from models.checkpoint.key_mapping import source, target
from models.loading.abstract import abstract_module
from models.parallel.jax_internals import subjaxprs
from models.sdxl.blocks import nearest
from models.sdxl.config import UNetConfig
from models.sdxl.embeddings import Embedding, sinusoid
from models.sdxl.key_mapping import RENAMES
from models.sdxl.network import UNet
from models.weights.loader import flat_parameters
from tests.models.sdxl.test_config import SDXL_BASE

PARAMETERS = 2_567_463_684
"""Parameters of SDXL base 1.0's UNet, as published."""


def abstract(dtype: Any, **changes: Any) -> UNet:
    config = UNetConfig.from_dict(SDXL_BASE | changes)
    return abstract_module(UNet, config, param_dtype=dtype)


def trace(network: UNet, latents_px: int = 128) -> jax.stages.Traced:
    graph, state = nnx.split(network)

    def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    config = network.config
    arguments = (
        shape(2, latents_px, latents_px, config.in_channels),
        shape(2),
        shape(2, 77, config.text_features, dtype=jnp.bfloat16),
        shape(2, 1280, dtype=jnp.bfloat16),
        shape(2, 6),
    )
    return jax.jit(lambda state, *args: nnx.merge(graph, state)(*args)).trace(state, *arguments)


def equations(jaxpr: Any) -> list[Any]:
    return [*jaxpr.eqns, *(e for inner in subjaxprs(jaxpr) for e in equations(inner))]


@pytest.fixture(scope="module")
def full_size() -> UNet:
    return abstract(jnp.bfloat16)


def test_parameters_are_those_of_the_published_checkpoint(full_size: UNet) -> None:
    shapes = [leaf.shape for leaf in flat_parameters(full_size).values()]
    assert sum(map(math.prod, shapes)) == PARAMETERS


def test_image_of_1024_traces_to_a_small_program(full_size: UNet) -> None:
    traced = trace(full_size)
    assert (traced.out_info.shape, traced.out_info.dtype) == ((2, 128, 128, 4), jnp.bfloat16)
    # The program has 3,278 equations. Unrolled, its 70 transformer layers would make about 15,000.
    assert len(equations(traced.jaxpr.jaxpr)) < 5_000


def test_every_parameter_has_a_name_in_the_checkpoint(full_size: UNet) -> None:
    """Both directions: writers of checkpoints look up the key of each path in the table."""
    for path, leaf in flat_parameters(full_size).items():
        layers = range(leaf.shape[0]) if leaf.axes[0] == "layers" else [None]
        for layer in layers:
            key = source(path, layer, RENAMES)
            assert key is not None, path
            goal = target(key, RENAMES)
            assert goal is not None and (goal.path, goal.layer) == (path, layer)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=str)
def test_products_in_the_weights_dtype_and_islands_in_float32(dtype: Any) -> None:
    network = abstract(
        dtype,
        block_out_channels=[32, 64],
        down_block_types=["DownBlock2D", "CrossAttnDownBlock2D"],
        up_block_types=["CrossAttnUpBlock2D", "UpBlock2D"],
        attention_head_dim=2,
        transformer_layers_per_block=1,
        layers_per_block=1,
        resnet_time_scale_shift="scale_shift",
        mid_block_scale_factor=2,
    )
    traced = trace(network, latents_px=16)
    assert traced.out_info.dtype == dtype
    all_equations = equations(traced.jaxpr.jaxpr)
    assert dtypes(all_equations, "dot_general") | dtypes(all_equations, "conv_general_dilated") == {
        jnp.dtype(dtype)
    }
    for island in ("sin", "cos", "rsqrt", "exp"):  # times and sizes, norms, softmax
        assert dtypes(all_equations, island) == {jnp.dtype("float32")}, island


def dtypes(program: list[Any], primitive: str) -> set[Any]:
    chosen = (equation for equation in program if equation.primitive.name == primitive)
    return {variable.aval.dtype for equation in chosen for variable in equation.invars}


def test_inputs_that_the_network_has_no_use_for_are_refused() -> None:
    with pytest.raises(ValueError, match="takes no timestep_cond"):
        Embedding(4, 8, rngs=nnx.Rngs(0), param_dtype=jnp.float32)(
            jnp.zeros((1, 4)), jnp.zeros((1, 256))
        )


def test_missing_network_input_is_named(full_size: UNet) -> None:
    graph, state = nnx.split(full_size)
    with pytest.raises(ValueError, match="text-time embedding"):
        jax.eval_shape(
            lambda state: nnx.merge(graph, state).condition(jnp.zeros(1), None, None, None), state
        )


@pytest.mark.parametrize("found", [(1, 2), (3, 5), (4, 4)], ids=str)
@pytest.mark.parametrize("wanted", [(3, 5), (7, 10), (8, 8), (2, 4)], ids=str)
def test_nearest_is_torchs(found: tuple[int, int], wanted: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal((2, *found, 3), np.float32)
    expected = torch.nn.functional.interpolate(torch.from_numpy(x).permute(0, 3, 1, 2), wanted)
    np.testing.assert_array_equal(
        nearest(jnp.asarray(x), wanted), expected.permute(0, 2, 3, 1).numpy()
    )


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(("features", "shift"), [(320, 0), (256, 1), (9, 0.5)])
def test_sinusoids_are_diffusers(features: int, shift: float, flip: bool) -> None:
    values = np.array([0.0, 1.0, 37.5, 999.0, 1344.0], np.float32)
    expected = get_timestep_embedding(torch.from_numpy(values), features, flip, shift)
    output = sinusoid(jnp.asarray(values), features, flip_sin_to_cos=flip, freq_shift=shift)
    # An error of one bit in a frequency gives 1e-4 at 1344; the libraries' sines differ far less.
    np.testing.assert_allclose(output, expected.numpy(), atol=2e-4, rtol=0)
    assert output.dtype == jnp.float32
