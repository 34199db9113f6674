"""Projections by head, their norm and RoPE, split among devices: same numbers, no gathered
kernel.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from models.nn.layers.norms import RMSNorm
from models.nn.layers.parameterised import from_heads, linear, to_heads
from models.nn.layers.rope import apply_rope, grid_rope_table
from models.parallel.placement import split
from models.parallel.trace_options import TraceOptions
from tests.parallel.layouts import layout

HEADS, WIDTH, GRID, AXES_DIMS = 4, 32, (2, 3, 4), (2, 2, 4)
CLOSE = 1e-5
"""Tolerance of float32 values of about 1: only the order of sums differs."""


class Part(nnx.Module):
    """The layers of a block before and after its attention."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.into = linear(WIDTH, WIDTH, ("embed", "heads"), rngs=rngs)
        self.norm = RMSNorm(WIDTH, 1e-6, rngs=rngs)
        self.out = linear(WIDTH, WIDTH, ("heads", "embed"), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        heads = self.norm.over_heads(to_heads(self.into, split(x, "batch", "tokens", None), HEADS))
        rotated = apply_rope(heads, grid_rope_table(GRID, AXES_DIMS))
        return split(from_heads(self.out, rotated), "batch", "tokens", None)


@pytest.mark.parametrize(
    "sizes", [{"tensor": 4}, {"context": 4}, {"cfg": 2, "context": 2, "tensor": 2}], ids=str
)
def test_sharded_heads_match_one_device(sizes: dict[str, Any]) -> None:
    graph, state = nnx.split(Part(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (2, int(np.prod(GRID)), WIDTH))
    by = layout(**sizes)

    def place(leaf: nnx.Variable) -> nnx.Variable:
        return leaf.replace(jax.device_put(leaf[...], by.of_parameter("", leaf)))

    placed = jax.tree.map(place, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    with TraceOptions(by).active():
        program = jax.jit(lambda state, x: nnx.merge(graph, state)(x)).lower(placed, x).compile()
    np.testing.assert_allclose(program(placed, x), nnx.merge(graph, state)(x), atol=CLOSE)
    assert "all-gather" not in (program.as_text() or "")
