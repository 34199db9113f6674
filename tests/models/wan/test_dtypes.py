"""Half precision: operations that stay float32, checked in the traced program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.typing import DTypeLike

from models.loading.abstract import abstract_module
from models.parallel.jax_internals import subjaxprs
from models.text.umt5 import UMT5Config, UMT5Encoder
from models.wan.config import WanConfig
from models.wan.network import WanTransformer

CONFIG = WanConfig(
    num_attention_heads=2,
    attention_head_dim=10,
    in_channels=7,
    out_channels=3,
    text_dim=4,
    freq_dim=6,
    ffn_dim=8,
    num_layers=2,
    image_dim=6,
    added_kv_proj_dim=20,
)
T5 = UMT5Config(vocab_size=20, d_model=12, d_kv=3, d_ff=8, num_layers=2, num_heads=5)
HALVES = [jnp.bfloat16, jnp.float16]
PRODUCTS = ("dot_general", "conv_general_dilated")


def step(dtype: DTypeLike) -> Any:
    network = abstract_module(WanTransformer, CONFIG, param_dtype=dtype)
    graph, state = nnx.split(network)
    arrays = [(1, 2, 4, 4, 7), (1,), (1, 512, 4), (1, 5, 6)]
    return jax.make_jaxpr(lambda state, *inputs: nnx.merge(graph, state)(*inputs))(
        state, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in arrays)
    )


def operations(jaxpr: Any) -> list[Any]:
    """All operations of a program and of its inner programs."""
    return list(jaxpr.eqns) + [e for inner in subjaxprs(jaxpr) for e in operations(inner)]


def operands(jaxpr: Any, *names: str) -> list[np.dtype]:
    """Dtype of the operands of each operation with these names."""
    operand_dtypes = []
    for operation in operations(jaxpr):
        if operation.primitive.name in names:
            dtypes = {variable.aval.dtype for variable in operation.invars}
            assert len(dtypes) == 1, f"{operation} promotes silently"
            operand_dtypes.append(dtypes.pop())
    return operand_dtypes


@pytest.mark.parametrize("dtype", HALVES)
def test_only_the_time_embedding_multiplies_in_float32(dtype: DTypeLike) -> None:
    program = step(dtype)
    products = operands(program.jaxpr, *PRODUCTS)
    assert products.count(jnp.dtype(jnp.float32)) == 2
    assert set(products) == {jnp.dtype(jnp.float32), jnp.dtype(dtype)}
    assert [value.dtype for value in program.out_avals] == [jnp.dtype(dtype)]


@pytest.mark.parametrize("dtype", HALVES)
def test_norms_softmax_and_waves_are_float32(dtype: DTypeLike) -> None:
    dtypes = operands(step(dtype).jaxpr, "rsqrt", "exp", "sin", "cos", "reduce_sum", "reduce_max")
    assert set(dtypes) == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("dtype", HALVES)
def test_text_encoder_in_float16_has_a_float32_stream(dtype: DTypeLike) -> None:
    """Same as transformers: the last kernel of each feed-forward and the residual stream are
    float32.
    """
    encoder = abstract_module(UMT5Encoder, T5, param_dtype=dtype)
    graph, state = nnx.split(encoder)
    program = jax.make_jaxpr(lambda state, ids: nnx.merge(graph, state)(ids))(
        state, jax.ShapeDtypeStruct((1, 9), jnp.int32)
    )
    products = operands(program.jaxpr, "dot_general")
    wide = jnp.float32 if dtype == jnp.float16 else dtype
    assert encoder.blocks.feed_forward.down.kernel.dtype == wide
    assert products.count(jnp.dtype(jnp.float32)) == (1 if dtype == jnp.float16 else 0)
    assert [value.dtype for value in program.out_avals] == [jnp.dtype(dtype)]
    scans = [e for e in operations(program.jaxpr) if e.primitive.name == "scan"]
    assert [scan.outvars[0].aval.dtype for scan in scans] == [jnp.dtype(wide)]
