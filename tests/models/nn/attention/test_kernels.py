"""Every kernel that runs here computes softmax(q kᵀ · scale) v, and the log of its weight."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.nn.kernels.block_sizes import AttentionBlocks
from models.nn.kernels.blockwise import blockwise_kernel, by_queries
from models.nn.kernels.kernel import NOTHING, Attended, Kernel
from models.nn.kernels.splash import splash_kernel
from models.nn.kernels.wide_attention import upright_kernel
from models.nn.kernels.xla import few_keys_kernel, xla_kernel
from tests import coarse

BATCH, HEADS, SCALE = 2, 2, 0.1


def small(dtype: jnp.dtype, dim: int, keys: int) -> AttentionBlocks:
    """Many blocks of short sequences."""
    return AttentionBlocks(32, 256, 128)


KERNELS: dict[str, Kernel] = {
    "xla": xla_kernel,
    "few keys": few_keys_kernel,
    "blockwise": blockwise_kernel(small),
    "by queries": by_queries(xla_kernel, 64 << 10),
    "splash": splash_kernel(small, interpret=True),
    "upright": upright_kernel(small, interpret=True),
}
SHAPES = {
    "whole blocks": (64, 512, 128),
    "odd lengths": (45, 603, 64),
    "text": (70, 77, 64),
    "one key more than a block": (33, 257, 80),
    "one query": (1, 130, 8),
}
"""Queries, keys, size of a head."""
CLOSE = 2e-6
"""Float32, of values and log-sums of about 1 and 10: sums of 600 terms in another order."""


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Compiled: block by block it would take long, and it is what runs."""
    function, options = KERNELS[request.param], coarse.OPTIONS
    return jax.jit(function, static_argnames="scale", compiler_options=options)


def inputs(queries: int, keys: int, dim: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(queries + keys)
    shapes = [(BATCH, tokens, HEADS, dim) for tokens in (queries, keys, keys)]
    q, k, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    return q, k, v


def exact(q, k, v, scale: float, keys: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    """In float64, with nothing clever."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    if keys is not None:
        k, v = k[:, keys], v[:, keys]
    weights = np.exp(scale * np.einsum("bqhd,bkhd->bhqk", q, k))
    total = weights.sum(-1)
    values = np.einsum("bhqk,bkhd->bqhd", weights / total[..., None], v)
    return values, np.log(total).transpose(0, 2, 1)


def assert_close(found: Attended, wanted: tuple[np.ndarray, np.ndarray]) -> None:
    assert found.values.dtype == found.log_sum.dtype == jnp.float32
    for part, exactly in zip(found, wanted, strict=True):
        np.testing.assert_allclose(part, exactly, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_keys(kernel: Kernel, shape: str) -> None:
    q, k, v = inputs(*SHAPES[shape])
    assert_close(kernel(q, k, v, scale=SCALE), exact(q, k, v, SCALE))


@pytest.mark.parametrize("shape", ["whole blocks", "odd lengths"])
def test_keys_that_do_not_count(kernel: Kernel, shape: str) -> None:
    q, k, v = inputs(*SHAPES[shape])
    keys = np.random.default_rng(0).random(k.shape[1]) < 0.4
    keys[:256] = False  # a whole block of keys of which none counts
    found = kernel(q, k, v, scale=SCALE, keys=jnp.asarray(keys))
    assert_close(found, exact(q, k, v, SCALE, keys))


@pytest.mark.parametrize("shape", ["whole blocks", "odd lengths"])
def test_a_mask_of_which_all_count(kernel: Kernel, shape: str) -> None:
    q, k, v = inputs(*SHAPES[shape])
    keys = jnp.ones(k.shape[1], bool)
    assert_close(kernel(q, k, v, scale=SCALE, keys=keys), exact(q, k, v, SCALE))


def test_parts_without_a_key_weigh_nothing(kernel: Kernel) -> None:
    """As a ring's turn over nothing but padding has it, also when it comes twice and first."""
    q, k, v = inputs(*SHAPES["odd lengths"])
    nothing = kernel(q, k, v, scale=SCALE, keys=jnp.zeros(k.shape[1], bool))
    assert (nothing.log_sum <= NOTHING).all()
    found = nothing.merge(nothing).merge(kernel(q, k, v, scale=SCALE))
    assert_close(found, exact(q, k, v, SCALE))


def test_large_logits_do_not_overflow(kernel: Kernel) -> None:
    q, k, v = inputs(*SHAPES["odd lengths"])
    found, wanted = kernel(q, k, v, scale=40.0), xla_kernel(q, k, v, scale=40.0)
    assert jnp.isfinite(found.values).all()
    # Logits of about 1,000, whose last digit is 1e-4: so much of a weight.
    np.testing.assert_allclose(found.log_sum, wanted.log_sum, rtol=1e-6)
    np.testing.assert_allclose(found.values, wanted.values, atol=2e-3)


def test_half_precision_in_float32_out(kernel: Kernel) -> None:
    q, k, v = (x.astype(jnp.bfloat16) for x in inputs(*SHAPES["odd lengths"]))
    values, log_sum = exact(q, k, v, 0.125)
    found = kernel(q, k, v, scale=0.125)
    assert found.values.dtype == found.log_sum.dtype == jnp.float32
    # The weights, or the values, are rounded to 8 bits once; the logits are not.
    np.testing.assert_allclose(found.values, values, atol=5e-3)
    np.testing.assert_allclose(found.log_sum, log_sum, atol=1e-4)
