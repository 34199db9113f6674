"""Attention by a layout is that of one device, by the layout's kernel, with the right swaps."""

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
from models.nn.kernels.kernel import Attended, Kernel
from models.nn.kernels.splash import splash_kernel
from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import Layout
from models.parallel.trace_options import TraceOptions
from tests.parallel.layouts import layout

CLOSE = 2e-6
"""Float32, of values of about 1: sums of a hundred terms in another order."""


class Seen:
    """XLA's kernel, which remembers what it was asked for while it was traced."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], int, bool]] = []

    def __call__(self, q: Any, k: Any, v: Any, *, scale: float, keys: Any = None) -> Attended:
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
    """Padding is known before, so that the kernel sees no mask and no padded key."""
    kernel, q_k_v = Seen(), inputs(rows, 33, heads)
    program = compiled(by(kernel, context=4), *q_k_v)
    assert kernel.calls == [((1, 36, rows * heads // 4, 8), 33, False)]
    found = exchanges(program)
    assert found["all-to-all"] == 4 and not found["collective-permute"]
    np.testing.assert_allclose(program(*q_k_v), attention(*q_k_v), atol=CLOSE)


KEYS = np.arange(36) < np.array([33, 7])[:, None]
"""Keys of two rows: the second has none on the last shares."""


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

    found = jax.jit(run)(q, k, v, keys)
    np.testing.assert_allclose(found, attention(q, k, v, keys=keys), atol=CLOSE)
    for row, count in enumerate(KEYS.sum(axis=1)):
        own = [x[row : row + 1] for x in (q, k[:, :count], v[:, :count])]
        np.testing.assert_allclose(found[row : row + 1], attention(*own), atol=CLOSE)


def test_heads_that_do_not_divide_go_round_instead() -> None:
    kernel, q_k_v = Seen(), inputs(1, 33, 3)
    program = compiled(by(kernel, context=4), *q_k_v)
    assert kernel.calls == 4 * [((1, 9, 3, 8), 9, True)]
    assert exchanges(program)["collective-permute"] and not exchanges(program)["all-to-all"]
    np.testing.assert_allclose(program(*q_k_v), attention(*q_k_v), atol=CLOSE)


@pytest.mark.parametrize("sizes", [{}, {"context": 4}, {"context": 4, "ring": 4}], ids=str)
def test_splash_by_a_layout(sizes: dict[str, int]) -> None:
    """Rings have one device with padding, which masks it, and three that do not."""
    splash = splash_kernel(lambda *_: AttentionBlocks(16, 128, 128), interpret=True)
    q_k_v = inputs(1, 139, 4)
    program = compiled(by(splash, **sizes), *q_k_v)
    np.testing.assert_allclose(program(*q_k_v), attention(*q_k_v), atol=CLOSE)


@pytest.mark.parametrize("sizes", [{}, {"cfg": 2}, {"tensor": 2}, {"context": 4}], ids=str)
def test_the_layouts_kernel_does_it_all(sizes: dict[str, int]) -> None:
    """On one device too, and where the queries have to be padded."""
    q, k, v = inputs(2, 33, 4)
    kernel = Seen()
    program = compiled(by(kernel, **sizes), q, k[:, :7], v[:, :7])
    assert [call[1:] for call in kernel.calls] == [(7, False)]
    assert not exchanges(program)["all-to-all"]
    wanted = attention(q, k[:, :7], v[:, :7])
    np.testing.assert_allclose(program(q, k[:, :7], v[:, :7]), wanted, atol=CLOSE)
    compiled(by(kernel, **sizes), q, k, v)
    assert len(kernel.calls) == 2
