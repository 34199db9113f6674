"""Sharded attention: one device's results, the layout's kernel, and the expected collectives."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.stages import Compiled

from models.nn.attention.attention import attention, cross_attention, token_attention
from models.nn.kernels.block_sizes import AttentionBlocks
from models.nn.kernels.kernel import AttentionOutput, Kernel
from models.nn.kernels.splash import splash_kernel
from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import Layout
from models.parallel.trace_options import TraceOptions
from tests.parallel.layouts import layout

CLOSE = 2e-6
"""Tolerance of float32 values of about 1: sums of a hundred terms in another order."""


class RecordingKernel:
    """XLA's kernel, with a record of its arguments during tracing."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], int, bool]] = []

    def __call__(
        self, q: Any, k: Any, v: Any, *, scale: float, keys: Any = None
    ) -> AttentionOutput:
        self.calls.append((q.shape, k.shape[1], keys is not None))
        return xla_kernel(q, k, v, scale=scale, keys=keys)


def by(kernel: Kernel, ring: int | None = None, **sizes: int) -> Layout:
    plain = layout(ring, **sizes)
    return Layout(plain.mesh, kernel, plain.table)


def inputs(rows: int, tokens: int, heads: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(tokens)
    q, k, v = (jnp.asarray(rng.normal(size=(rows, tokens, heads, 8)), jnp.float32) for _ in "qkv")
    return q, k, v


def compiled(layout: Layout, *arguments: jax.Array) -> Compiled:
    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        with TraceOptions(layout).active():
            crosses = q.shape[1] != k.shape[1]
            return (cross_attention if crosses else token_attention)(q, k, v)

    return jax.jit(run).lower(*arguments).compile()


def exchanges(program: Compiled) -> Counter[str]:
    kinds = r" (all-to-all|collective-permute|all-gather)(?:-start)?\("
    return Counter(re.findall(kinds, program.as_text()))


@pytest.mark.parametrize(("rows", "heads"), [(1, 4), (2, 2), (4, 1), (2, 6)])
def test_ulysses_swaps_the_heads_of_all_rows(rows: int, heads: int) -> None:
    """The amount of padding is static, so the kernel receives no mask and no padded key."""
    kernel, q_k_v = RecordingKernel(), inputs(rows, 33, heads)
    program = compiled(by(kernel, context=4), *q_k_v)
    assert kernel.calls == [((1, 36, rows * heads // 4, 8), 33, False)]
    collectives = exchanges(program)
    assert collectives["all-to-all"] == 4 and not collectives["collective-permute"]
    np.testing.assert_allclose(program(*q_k_v), attention(*q_k_v), atol=CLOSE)


KEYS = np.arange(36) < np.array([33, 7])[:, None]
"""Key mask of two rows. The second row has no keys on the last shards."""


@pytest.mark.parametrize(
    "sizes",
    [{}, {"data": 2}, {"context": 4}, {"context": 4, "ring": 4}, {"cfg": 2, "fsdp": 2}],
    ids=str,
)
def test_keys_of_each_row(sizes: dict[str, int]) -> None:
    q, k, v = inputs(2, 36, 4)
    keys = jnp.asarray(KEYS)

    def run(q: jax.Array, k: jax.Array, v: jax.Array, keys: jax.Array) -> jax.Array:
        with TraceOptions(by(xla_kernel, **sizes)).active():
            return token_attention(q, k, v, keys=keys)

    output = jax.jit(run)(q, k, v, keys)
    np.testing.assert_allclose(output, attention(q, k, v, keys=keys), atol=CLOSE)
    for row, count in enumerate(KEYS.sum(axis=1)):
        arguments = [x[row : row + 1] for x in (q, k[:, :count], v[:, :count])]
        np.testing.assert_allclose(output[row : row + 1], attention(*arguments), atol=CLOSE)


def test_indivisible_heads_use_the_ring() -> None:
    kernel, q_k_v = RecordingKernel(), inputs(1, 33, 3)
    program = compiled(by(kernel, context=4), *q_k_v)
    assert kernel.calls == 4 * [((1, 9, 3, 8), 9, True)]
    assert exchanges(program)["collective-permute"] and not exchanges(program)["all-to-all"]
    np.testing.assert_allclose(program(*q_k_v), attention(*q_k_v), atol=CLOSE)


@pytest.mark.parametrize("sizes", [{}, {"context": 4}, {"context": 4, "ring": 4}], ids=str)
def test_splash_by_a_layout(sizes: dict[str, int]) -> None:
    """One device of a ring masks its padding; the other three have none."""
    splash = splash_kernel(lambda *_: AttentionBlocks(16, 128, 128), interpret=True)
    q_k_v = inputs(1, 139, 4)
    program = compiled(by(splash, **sizes), *q_k_v)
    np.testing.assert_allclose(program(*q_k_v), attention(*q_k_v), atol=CLOSE)


@pytest.mark.parametrize("sizes", [{}, {"cfg": 2}, {"tensor": 2}, {"context": 4}], ids=str)
def test_layout_calls_its_kernel_once(sizes: dict[str, int]) -> None:
    """The layout calls its kernel once, on one device too, and with queries that need padding."""
    q, k, v = inputs(2, 33, 4)
    kernel = RecordingKernel()
    program = compiled(by(kernel, **sizes), q, k[:, :7], v[:, :7])
    assert [call[1:] for call in kernel.calls] == [(7, False)]
    assert not exchanges(program)["all-to-all"]
    expected = attention(q, k[:, :7], v[:, :7])
    np.testing.assert_allclose(program(q, k[:, :7], v[:, :7]), expected, atol=CLOSE)
    compiled(by(kernel, **sizes), q, k, v)
    assert len(kernel.calls) == 2
