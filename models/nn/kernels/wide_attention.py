"""Flash attention for TPUs with 256-wide matrix units, with logits as [keys, queries].

Splash has one query per row. Heads of 128 then fill half of the unit in both products, and each
row's maximum and sum are reductions across lanes. Here logits are [keys, queries]. The values'
product sums over 256 keys at a time and fills the unit, so that the limit is two thirds of the peak
instead of half. A query's maximum and sum are reductions over rows, which are cheap.

The half of the unit that q kᵀ leaves empty does the rest of the softmax. Keys get additional
columns, of ones and of the mask, and queries additional rows, including their maximum. So logits
are already masked and reduced by the maximum, and only the exponential remains. The maximum is that
of the first few keys. Any number near it gives the same result unless a sum overflows. A block that
overflows is recomputed with the maximum of all its keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from models.nn.kernels.block_sizes import LANES, SUBLANES, AttentionBlocks, Choose, even, rounded
from models.nn.kernels.kernel import AttentionOutput, Kernel
from models.parallel.jax_internals import pallas as pl
from models.parallel.jax_internals import pallas_tpu as pltpu

UNIT = 256
"""Rows and columns of a matrix unit."""
TILE = 2 * UNIT
"""Queries of one product: two matrix units of a chip, 256 each."""
PEEK = 64
"""Number of keys whose maximum is used at first."""
MASKED = -(2.0**120)
"""Added to the logits of keys that do not count; exact in bfloat16."""
MAX_WEIGHT = 2.0**100
"""Limit of the sum of a query's weights; above it the block is recomputed."""
VMEM_BYTES = 48 << 20

PARTS = frozenset({"first", "again", "last"})
"""Parts that only some blocks run: a query's first block, its last one, and overflowed ones."""

Heads = Float[Array, "batch_heads _rows _columns"]


def transposed_kernel(choose: Choose, *, interpret: bool = False) -> Kernel:
    """Build a transposed attention kernel: implementation of `models.nn.kernels.kernel.Kernel`.

    Args:
        choose: returns the block sizes.
        interpret: run without a TPU, slowly.

    Source: Dao et al. 2022, "FlashAttention", algorithm 1, transposed, with a maximum that is
    corrected only if necessary.
    """

    def attend(
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
        *,
        scale: float,
        keys: Bool[Array, " kv_tokens"] | None = None,
    ) -> AttentionOutput:
        blocks = fitting(choose(q.dtype, q.shape[-1], k.shape[1]), q.shape[1], k.shape[1])
        run = partial(over_blocks, blocks=blocks, scale=scale, interpret=interpret)
        rows = filled(row_major(k), 2, SUBLANES)
        values, log_sum = run(
            filled(transpose_heads(q), 1, SUBLANES),
            rows,
            filled(transpose_heads(v), 1, SUBLANES),
            key_columns(keys, rows, blocks.kv),
        )
        return AttentionOutput(_restore_order(values, q), _restore_order(log_sum, q)[..., 0])

    return attend


def fitting(blocks: AttentionBlocks, queries: int, keys: int) -> AttentionBlocks:
    """Return the fewest equal attention blocks no larger than `blocks`.

    Sizes are multiples of a unit, or of the lanes if shorter; keys per product divide the block's
    keys.
    """

    def equal(tokens: int, block: int) -> int:
        multiple = LANES if min(tokens, block) <= LANES else UNIT
        return even(tokens, rounded(block, multiple), multiple)[0]

    kv = equal(keys, blocks.kv)
    return AttentionBlocks(
        equal(queries, blocks.q), kv, math.gcd(kv, rounded(blocks.kv_compute, LANES))
    )


def transpose_heads(x: Float[Array, "batch tokens heads dim"]) -> Heads:
    """Transpose attention inputs to [batch · heads, dim, tokens]."""
    return x.transpose(0, 2, 3, 1).reshape(-1, x.shape[3], x.shape[1])


def row_major(x: Float[Array, "batch tokens heads dim"]) -> Heads:
    """Transpose attention inputs to [batch · heads, tokens, dim]."""
    return x.transpose(0, 2, 1, 3).reshape(-1, x.shape[1], x.shape[3])


def filled(x: Heads, axis: int, multiple: int) -> Heads:
    """Pad a feature axis with zeros, up to a multiple."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % multiple)
    return jnp.pad(x, widths) if widths[axis][1] else x


def key_columns(
    keys: Bool[Array, " kv_tokens"] | None, rows: Heads, block: int
) -> Float[Array, "_padded lanes"]:
    """Build the additional columns of the keys: three ones, for parts of a maximum, and the mask.

    Columns are in the lanes after the keys' features: rotating them takes longer than the memory
    saved is worth.

    Args:
        rows: the keys, row-major.
    """
    _, tokens, features = rows.shape
    counted = jnp.ones(tokens, bool) if keys is None else keys
    counted = jnp.pad(counted, (0, -tokens % block))
    column = (jnp.arange(LANES) - features) % LANES
    mask = jnp.where(counted, 0.0, MASKED)[:, None]
    return jnp.where(column < 3, 1.0, jnp.where(column == 3, mask, 0.0)).astype(rows.dtype)


def over_blocks(
    q: Heads,
    k: Heads,
    v: Heads,
    columns: Float[Array, "kv_tokens lanes"],
    *,
    blocks: AttentionBlocks,
    scale: float,
    interpret: bool = False,
    parts: Collection[str] = PARTS,
) -> tuple[Heads, Float[Array, "batch_heads 1 q_tokens"]]:
    """Compute values [batch · heads, dim, queries] in the queries' dtype, and log-sums, by blocks.

    Args:
        q, v: transposed by `transpose_heads`; k: row-major. The last blocks may be incomplete, and
            heads need not fill the lanes: padding would copy each array.
        columns: from `key_columns`, in whole blocks.
        parts: parts to include. Without some the result is wrong, but the compiler's schedule is
            that of blocks without such a part.
    """
    heads, dim, queries = q.shape
    rows, deep = k.shape[1], v.shape[1]
    grid = heads, -(-queries // blocks.q), -(-rows // blocks.kv)
    loops = _Loops(
        last=grid[2] - 1,
        rests=(queries % blocks.q, rows % blocks.kv),
        tile=blocks.kv_compute,
        factor=scale * math.log2(math.e),
        parts=parts,
    )
    output: tuple[Array, Array] = pl.pallas_call(
        partial(_block, loops),
        grid=grid,
        in_specs=[
            pl.BlockSpec((None, dim, blocks.q), lambda h, i, j: (h, 0, i)),
            pl.BlockSpec((None, blocks.kv, dim), lambda h, i, j: (h, j, 0)),
            pl.BlockSpec((None, deep, blocks.kv), lambda h, i, j: (h, 0, j)),
            pl.BlockSpec((blocks.kv, LANES), lambda h, i, j: (j, 0)),
        ],
        out_specs=[
            pl.BlockSpec((None, deep, blocks.q), lambda h, i, j: (h, 0, i)),
            pl.BlockSpec((None, 1, blocks.q), lambda h, i, j: (h, 0, i)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((heads, deep, queries), q.dtype),
            jax.ShapeDtypeStruct((heads, 1, queries), jnp.float32),
        ],
        scratch_shapes=[
            pltpu.VMEM((rounded(dim + SUBLANES, LANES), blocks.q), q.dtype),
            pltpu.VMEM((1, blocks.q), jnp.float32),
            pltpu.VMEM((2, 1, blocks.q), jnp.float32),
            pltpu.VMEM((2, deep, blocks.q), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=VMEM_BYTES,
        ),
        cost_estimate=_cost(q, k, v, grid[1]),
        name="transposed_attention",
        interpret=interpret,
    )(q, k, v, columns)
    return output


def _cost(q: Heads, k: Heads, v: Heads, sweeps: int) -> pl.CostEstimate:
    """Estimate an attention kernel's cost for XLA's scheduler.

    Args:
        sweeps: how often all keys and values are read.
    """
    heads, dim, queries = q.shape
    rows, deep = k.shape[1], v.shape[1]
    return pl.CostEstimate(
        flops=2 * heads * queries * rows * (dim + deep),
        transcendentals=heads * queries * rows,
        bytes_accessed=2 * heads * (2 * dim * queries + sweeps * rows * (dim + deep)),
    )


class _Loops(NamedTuple):
    """Constants of the kernel's loops over blocks and tiles."""

    last: int
    """Index of a query's last block of keys."""
    rests: tuple[int, int]
    """Queries and keys of incomplete last blocks, else 0; the memory after them is undefined."""
    tile: int
    """Keys of one product."""
    factor: float
    """Scale of logits for powers of two."""
    parts: Collection[str]
    """Parts to include, of `PARTS`."""


class _Memory(NamedTuple):
    """References to a block's keys and values, and to the state of its queries.

    `total` and `sums` are double-buffered: the values of the blocks before are kept until this
    block has not overflowed.
    """

    k: jax.Ref
    v: jax.Ref
    columns: jax.Ref
    queries: jax.Ref
    """Features and, below them, the rows for `columns`."""
    largest: jax.Ref
    """A number near each query's largest logit, before `factor`."""
    total: jax.Ref
    """Sum of each query's weights."""
    sums: jax.Ref
    """Weighted sum of values."""


def _block(loops: _Loops, q: jax.Ref, k: jax.Ref, v: jax.Ref, *references: jax.Ref) -> None:
    """Process one block of queries and keys in the attention kernel.

    Args:
        references: the keys' columns, the outputs, then the scratch memory.
    """
    columns, values, log_sum, *scratch = references
    memory = _Memory(k, v, columns, *scratch)

    def when(part: str, condition: Array) -> Callable[[Callable[[], None]], None]:
        return pl.when(condition) if part in loops.parts else lambda body: None

    step = pl.program_id(2)
    places = before, after = step % 2, (step + 1) % 2
    incomplete_queries, incomplete_keys = loops.rests

    if incomplete_keys:

        @when("last", step == loops.last)
        def clear_keys() -> None:
            _clear(k, 0, incomplete_keys, SUBLANES)
            _clear(v, 1, incomplete_keys, LANES)

    if incomplete_queries:

        @when("first", (step == 0) & (pl.program_id(1) == pl.num_programs(1) - 1))
        def clear_queries() -> None:
            _clear(q, 1, incomplete_queries, LANES)

    when("first", step == 0)(partial(_begin, memory, q, before))
    _fast(memory, places, loops)
    overflowed = jnp.logical_not(memory.total[after].max() < MAX_WEIGHT)
    when("again", overflowed)(partial(_again, memory, places, loops))

    @when("last", step == loops.last)
    def end() -> None:
        values[...] = (memory.sums[after] / memory.total[after]).astype(values.dtype)
        log_sum[...] = memory.largest[...] * (loops.factor * math.log(2)) + jnp.log(
            memory.total[after]
        )


def _begin(memory: _Memory, q: jax.Ref, before: Array) -> None:
    """Initialize the state of a block of queries: zero sums, and the first few keys' maximum."""
    k, queries, largest = memory.k, memory.queries, memory.largest
    queries[...] = jnp.zeros_like(queries)
    queries[: q.shape[0]] = q[...]
    memory.sums[before] = jnp.zeros_like(memory.sums[0])
    memory.total[before] = jnp.zeros_like(memory.total[0])
    _subtract(queries, k.shape[1], jnp.zeros_like(largest))
    some = _logits(memory, slice(0, min(PEEK, k.shape[0])))
    largest[...] = some.max(axis=0, keepdims=True)
    _subtract(queries, k.shape[1], largest[...])


def _again(memory: _Memory, places: tuple[Array, Array], loops: _Loops) -> None:
    """Recompute a block whose logits overflowed, with the maximum of all its keys."""
    k, v, _, queries, largest, total, sums = memory
    before, after = places
    _subtract(queries, k.shape[1], jnp.zeros_like(largest))
    count = k.shape[0] // loops.tile

    def higher(i: Array, highest: Array) -> Array:
        logits = _logits(memory, pl.ds(i * loops.tile, loops.tile))
        return jnp.maximum(highest, logits.max(axis=0, keepdims=True))

    new = jax.lax.fori_loop(0, count, higher, largest[...])
    shrink = jnp.exp2((largest[...] - new) * loops.factor)
    total[after], sums[after] = total[before] * shrink, sums[before] * shrink
    largest[...] = new
    _subtract(queries, k.shape[1], new)

    def add(i: Array) -> None:
        rows = pl.ds(i * loops.tile, loops.tile)
        weights = jnp.exp2(_logits(memory, rows) * loops.factor)
        total[after] += weights.sum(axis=0, keepdims=True)
        sums[after] += _dot(v[:, rows], weights.astype(v.dtype))

    pl.loop(0, count)(add)


def _clear(x: jax.Ref, axis: int, start: int, multiple: int) -> None:
    """Write zeros to an array from `start` on along an axis, in place."""
    aligned = start // multiple * multiple
    tail = x.at[aligned:] if axis == 0 else x.at[:, aligned:]
    place = jax.lax.broadcasted_iota(jnp.int32, tail.shape, axis) + aligned
    tail[...] = jnp.where(place < start, tail[...], jnp.zeros_like(tail[...]))


def _fast(memory: _Memory, places: tuple[Array, Array], loops: _Loops) -> None:
    """Compute a block of attention tile by tile, with three tiles in a pipeline.

    The compiler keeps the order of the matrix units' products. So each turn issues one tile's
    logits, the weights of the tile before it, and the values' product of a third.
    """
    k, v, _, queries, _, total, sums = memory
    before, after = places
    tiles = [
        (slice(start, start + loops.tile), slice(left, min(left + TILE, queries.shape[1])))
        for start in range(0, k.shape[0], loops.tile)
        for left in range(0, queries.shape[1], TILE)
    ]
    logits, weights = {}, {}
    for turn in range(len(tiles) + 2):
        if turn < len(tiles):
            rows, some = tiles[turn]
            logits[turn] = _logits(memory, rows, some)
        if 1 <= turn <= len(tiles):
            weights[turn - 1] = jnp.exp2(logits.pop(turn - 1) * loops.factor)
        if turn >= 2:
            rows, some = tiles[turn - 2]
            tile_weights = weights.pop(turn - 2)
            place = before if rows.start == 0 else after
            total[after, :, some] = total[place, :, some] + tile_weights.sum(axis=0, keepdims=True)
            product = _dot(v[:, rows], tile_weights.astype(v.dtype))
            sums[after, :, some] = sums[place, :, some] + product


def _logits(memory: _Memory, rows: Any, some: slice = slice(None)) -> Array:
    """Return logits [keys, queries] less each query's subtracted maximum, in the units of q kᵀ.

    Args:
        rows: slice of the keys; `some`: of the queries.
    """
    k, columns = memory.k, memory.columns
    extended = jnp.concatenate([k[rows], columns[rows, k.shape[1] % LANES :]], axis=1)
    return _dot(extended, memory.queries[:, some])


def _dot(x: Array, y: Array) -> Array:
    return jnp.dot(x, y, preferred_element_type=jnp.float32)


def _subtract(queries: jax.Ref, features: int, largest: Array) -> None:
    """Write each query's negative maximum to the rows below its features, as an exact sum."""
    shape = SUBLANES, largest.shape[1]
    row = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    below = jnp.where(row == 3, 1.0, 0.0)
    rest = -largest
    for place in range(3):
        part = rest.astype(queries.dtype).astype(jnp.float32)
        below = jnp.where(row == place, jnp.broadcast_to(part, shape), below)
        rest = rest - part
    queries[features : features + SUBLANES] = below.astype(queries.dtype)


def _restore_order(
    x: Heads, q: Float[Array, "batch q_tokens heads dim"]
) -> Float[Array, "batch q_tokens heads _rows"]:
    """Transpose attention outputs to the order of the queries, in float32, without padding."""
    batch, _, heads, dim = q.shape
    split = x.reshape(batch, heads, *x.shape[1:])[:, :, :dim]
    return split.transpose(0, 3, 1, 2).astype(jnp.float32)
