"""Every kernel for this machine computes softmax(q kᵀ · scale) v and the log of its weight sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.nn.kernels.block_sizes import AttentionBlocks
from models.nn.kernels.blockwise import blockwise_kernel, by_queries
from models.nn.kernels.kernel import NOTHING, AttentionOutput, Kernel
from models.nn.kernels.splash import splash_kernel
from models.nn.kernels.wide_attention import transposed_kernel
from models.nn.kernels.xla import few_keys_kernel, xla_kernel
from tests import coarse

BATCH, HEADS, SCALE = 2, 2, 0.1


def small(dtype: jnp.dtype, dim: int, keys: int) -> AttentionBlocks:
    """Block sizes that split short sequences into many blocks."""
    return AttentionBlocks(32, 256, 128)


KERNELS: dict[str, Kernel] = {
    "xla": xla_kernel,
    "few keys": few_keys_kernel,
    "blockwise": blockwise_kernel(small),
    "by queries": by_queries(xla_kernel, 64 << 10),
    "splash": splash_kernel(small, interpret=True),
    "transposed": transposed_kernel(small, interpret=True),
}
SHAPES = {
    "whole blocks": (64, 512, 128),
    "odd lengths": (45, 603, 64),
    "text": (70, 77, 64),
    "one key more than a block": (33, 257, 80),
    "one query": (1, 130, 8),
}
"""Number of queries, number of keys, and size of a head."""
CLOSE = 2e-6
"""Tolerance of float32 values of about 1 and log-sums of about 10: 600 terms in another order."""


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Compiled kernel: interpretation by block would be slow, and production runs it compiled."""
    function, options = KERNELS[request.param], coarse.OPTIONS
    return jax.jit(function, static_argnames="scale", compiler_options=options)


def inputs(queries: int, keys: int, dim: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(queries + keys)
    shapes = [(BATCH, tokens, HEADS, dim) for tokens in (queries, keys, keys)]
    q, k, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    return q, k, v


def exact(q, k, v, scale: float, keys: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Reference: attention in float64 by plain matrix products."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    if keys is not None:
        k, v = k[:, keys], v[:, keys]
    weights = np.exp(scale * np.einsum("bqhd,bkhd->bhqk", q, k))
    total = weights.sum(-1)
    values = np.einsum("bhqk,bkhd->bqhd", weights / total[..., None], v)
    return values, np.log(total).transpose(0, 2, 1)


def assert_close(output: AttentionOutput, expected: tuple[np.ndarray, np.ndarray]) -> None:
    assert output.values.dtype == output.log_sum.dtype == jnp.float32
    for part, reference in zip(output, expected, strict=True):
        np.testing.assert_allclose(part, reference, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_matches_exact_attention_over_all_keys(kernel: Kernel, shape: str) -> None:
    q, k, v = inputs(*SHAPES[shape])
    assert_close(kernel(q, k, v, scale=SCALE), exact(q, k, v, SCALE))


@pytest.mark.parametrize("shape", ["whole blocks", "odd lengths"])
def test_keys_that_do_not_count(kernel: Kernel, shape: str) -> None:
    q, k, v = inputs(*SHAPES[shape])
    keys = np.random.default_rng(0).random(k.shape[1]) < 0.4
    keys[:256] = False  # a whole block of keys is masked
    output = kernel(q, k, v, scale=SCALE, keys=jnp.asarray(keys))
    assert_close(output, exact(q, k, v, SCALE, keys))


@pytest.mark.parametrize("shape", ["whole blocks", "odd lengths"])
def test_a_mask_of_which_all_count(kernel: Kernel, shape: str) -> None:
    q, k, v = inputs(*SHAPES[shape])
    keys = jnp.ones(k.shape[1], bool)
    assert_close(kernel(q, k, v, scale=SCALE, keys=keys), exact(q, k, v, SCALE))


def test_empty_key_parts_do_not_change_merged_attention(kernel: Kernel) -> None:
    """Empty parts occur in a ring where a shard has only padding. An empty part may also come
    first, or twice.
    """
    q, k, v = inputs(*SHAPES["odd lengths"])
    empty = kernel(q, k, v, scale=SCALE, keys=jnp.zeros(k.shape[1], bool))
    assert (empty.log_sum <= NOTHING).all()
    output = empty.merge(empty).merge(kernel(q, k, v, scale=SCALE))
    assert_close(output, exact(q, k, v, SCALE))


def test_large_logits_do_not_overflow(kernel: Kernel) -> None:
    q, k, v = inputs(*SHAPES["odd lengths"])
    output, expected = kernel(q, k, v, scale=40.0), xla_kernel(q, k, v, scale=40.0)
    assert jnp.isfinite(output.values).all()
    # The logits are about 1,000 and their last digit is 1e-4, which is the weights' relative error.
    np.testing.assert_allclose(output.log_sum, expected.log_sum, rtol=1e-6)
    np.testing.assert_allclose(output.values, expected.values, atol=2e-3)


def test_half_precision_in_float32_out(kernel: Kernel) -> None:
    q, k, v = (x.astype(jnp.bfloat16) for x in inputs(*SHAPES["odd lengths"]))
    values, log_sum = exact(q, k, v, 0.125)
    output = kernel(q, k, v, scale=0.125)
    assert output.values.dtype == output.log_sum.dtype == jnp.float32
    # The weights or the values are rounded to 8 bits once; the logits are not.
    np.testing.assert_allclose(output.values, values, atol=5e-3)
    np.testing.assert_allclose(output.log_sum, log_sum, atol=1e-4)
