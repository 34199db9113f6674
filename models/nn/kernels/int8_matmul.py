"""Products in 8 bits by kernels of our own, for TPUs that multiply int8 at twice bfloat16's rate.

XLA rounds activations in passes of its own and scales what comes out of a product beside it. Here
one kernel reads rows once, finds each one's largest number and writes them in 8 bits; another
multiplies them, and what leaves it has been scaled, has its bias and has been activated.

Blocks have all inputs of a product, so that a sum never leaves the matrix unit's side, and as many
of its outputs as memory near the core takes: kernels are read once, activations a few times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int8, Int32

from models.nn.kernels.block_sizes import LANES
from models.parallel.jax_internals import pallas as pl
from models.parallel.jax_internals import pallas_tpu as pltpu

MOST = 127
"""The largest number of 8 bits; scales are such that a row's largest one comes half a step above,
as qwix has it."""
VMEM_BYTES = 96 << 20
BLOCK_BYTES = 72 << 20
"""Part of that for blocks, each of them there twice; the rest is for a tile's sums."""
MOST_OUTPUTS = 2048
"""Maximum outputs of a block. Activations are read once for each, which takes a quarter of the time
of a product of so many on a v6e."""
MOST_WORK = 1 << 33
"""Products of numbers in a block: 16,384 cycles of a v6e."""
ENDS = 400 << 19
"""Cost of beginning and ending a block: 400 cycles."""
MOST_TOKENS = 1024
TILE = 512
"""Tokens and outputs that are multiplied at once: a chip has two units of 256."""
ROUNDED_TOKENS = 256
"""A block of those that are rounded."""

Activation = Callable[[Array], Array]
Part = Float[Array, "tokens _features"] | Float[Array, "_heads _dim tokens"]
"""Part of the inputs; features by head may come upright, as our attention leaves them."""
Values = Int8[Array, "tokens _features"]


CHIPS = ("TPU v6 lite",)
"""Chips, as `jax.Device.device_kind` names them, for which it was compiled and found to be faster
than XLA's."""


class OfStack(NamedTuple):
    """Kernel of a stack, which is read from there: to cut it out would copy it."""

    values: Int8[Array, "layers in_features out_features"]
    number: Int32[Array, ""]

    @property
    def shape(self) -> tuple[int, ...]:
        """[in, out] of the one kernel."""
        return self.values.shape[1:]


@runtime_checkable
class Product(Protocol):
    """activation(parts, side by side, @ kernel · columns + bias), in the dtype of the parts.

    parts [tokens, features] each, kernel [in, out], columns and bias [out];
    returns [tokens, out], or with heads [heads, tokens, out / heads], or those upright,
    [heads, out / heads, tokens].
    """

    def __call__(
        self,
        parts: Sequence[Part],
        kernel: OfStack,
        columns: Float[Array, " out"],
        bias: Float[Array, " out"] | None,
        *,
        activation: Activation | None = None,
        heads: int = 0,
        upright: bool = False,
    ) -> Array:
        """Return the product of rounded activations with rounded weights."""


@dataclass(frozen=True)
class MatmulBlocks:
    """Tokens and outputs of one block of a product."""

    tokens: int
    outputs: int


def eight_bit_for(device_kind: str) -> Product | None:
    """Return a chip's product in 8 bits; None: XLA's."""
    return product if device_kind in CHIPS else None


def product(
    parts: Sequence[Part],
    kernel: OfStack,
    columns: Float[Array, " out"],
    bias: Float[Array, " out"] | None,
    *,
    activation: Activation | None = None,
    heads: int = 0,
    upright: bool = False,
    interpret: bool = False,
) -> Array:
    """Implementation of `Product`, of inputs and outputs that fill lanes.

    Args:
        interpret: run without a TPU, slowly.
    """
    values, scale = rounded_rows(parts, interpret=interpret)
    return multiplied(
        values,
        scale,
        kernel,
        columns[None],
        None if bias is None else bias[None].astype(jnp.float32),
        activation,
        parts[0].dtype,
        heads=heads,
        upright=upright,
        interpret=interpret,
    )


def rounded_rows(
    parts: Sequence[Part], *, interpret: bool = False
) -> tuple[list[Values], Float[Array, "tokens 1"]]:
    """Parts of a row in 8 bits, and the scale that all of them have, in float32.

    The numbers are `qwix.quantize`'s of float32, but for products with a reciprocal instead of
    quotients.
    """
    tokens = parts[0].shape[0 if parts[0].ndim == 2 else 2]
    widths = [part.shape[1] if part.ndim == 2 else math.prod(part.shape[:2]) for part in parts]

    def rows(features: int) -> pl.BlockSpec:
        return pl.BlockSpec((ROUNDED_TOKENS, features), lambda i: (i, 0))

    def block(part: Array) -> pl.BlockSpec:
        if part.ndim == 2:
            return rows(part.shape[1])
        return pl.BlockSpec((*part.shape[:2], ROUNDED_TOKENS), lambda i: (0, 0, i))

    *values, scale = pl.pallas_call(
        partial(_round, len(parts)),
        grid=(-(-tokens // ROUNDED_TOKENS),),
        in_specs=[block(part) for part in parts],
        out_specs=[*(rows(width) for width in widths), rows(1)],
        out_shape=[
            *(jax.ShapeDtypeStruct((tokens, width), jnp.int8) for width in widths),
            jax.ShapeDtypeStruct((tokens, 1), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=VMEM_BYTES
        ),
        name="rounded_rows",
        interpret=interpret,
    )(*parts)
    return values, scale


def _round(count: int, *references) -> None:  # type: ignore[no-untyped-def]
    parts, values, scale = references[:count], references[count:-1], references[-1]
    largest = jnp.zeros(scale.shape, jnp.float32)
    rows = [_rows(part) for part in parts]
    for part in rows:
        here = jnp.abs(part).max(axis=1, keepdims=True)
        largest = jnp.maximum(largest, here.astype(jnp.float32))
    found = largest / (MOST + 0.5)
    found = jnp.where(found < math.sqrt(jnp.finfo(jnp.float32).tiny), 1.0, found)
    scale[...] = found
    inverse = 1 / found
    for part, out in zip(rows, values, strict=True):
        near = jnp.round(part.astype(jnp.float32) * inverse)
        out[...] = jnp.minimum(near, MOST).astype(jnp.int32).astype(jnp.int8)


def _rows(part) -> Array:  # type: ignore[no-untyped-def]
    """Return the rows of a part that may be upright, head by head."""
    whole: Array = part[...]
    return whole if whole.ndim == 2 else whole.reshape(-1, whole.shape[2]).T


def multiplied(
    parts: Sequence[Values],
    scale: Float[Array, "tokens 1"],
    kernel: OfStack,
    columns: Float[Array, "1 out"],
    bias: Float[Array, "1 out"] | None,
    activation: Activation | None,
    dtype: DTypeLike,
    *,
    heads: int = 0,
    upright: bool = False,
    interpret: bool = False,
) -> Float[Array, "tokens out"] | Float[Array, "heads _rows _columns"]:
    """activation(scale · (parts, side by side) @ kernel · columns + bias), rounded to that dtype.

    Args:
        heads: leave the outputs head by head; 0: side by side.
        upright: and each head's tokens side by side, as our attention reads queries and values.
    """
    tokens, (_, features, outputs) = len(scale), kernel.values.shape
    blocks = blocks_for(
        tokens, features, outputs, outputs // heads if heads else LANES, jnp.dtype(dtype).itemsize
    )
    vectors = [columns] if bias is None else [columns, bias]
    rows, across = blocks.tokens, blocks.outputs
    shape: tuple[int, ...] = tokens, outputs
    out = pl.BlockSpec((rows, across), lambda j, i, _: (i, j))
    if heads:
        dim = outputs // heads
        shape = heads, tokens, dim
        out = pl.BlockSpec((across // dim, rows, dim), lambda j, i, _: (j, i, 0))
    if upright:
        shape = heads, dim, tokens
        out = pl.BlockSpec((across // dim, dim, rows), lambda j, i, _: (j, 0, i))
    return pl.pallas_call(
        partial(_multiply, len(parts), activation, upright),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(outputs // across, -(-tokens // rows)),
            in_specs=[
                *(pl.BlockSpec((rows, part.shape[1]), lambda j, i, _: (i, 0)) for part in parts),
                pl.BlockSpec((rows, 1), lambda j, i, _: (i, 0)),
                pl.BlockSpec((None, features, across), lambda j, i, number: (number[0], 0, j)),
                *(pl.BlockSpec((1, across), lambda j, i, _: (0, j)) for _ in vectors),
            ],
            out_specs=out,
        ),
        out_shape=jax.ShapeDtypeStruct(shape, dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        name="multiplied",
        interpret=interpret,
    )(kernel.number[None], *parts, scale, kernel.values, *vectors)


def blocks_for(
    tokens: int, features: int, outputs: int, multiple: int, itemsize: int
) -> MatmulBlocks:
    """Return the block sizes of a product.

    As many outputs as spare enough readings of the activations, and tokens for a program that is
    neither all beginning and end nor long to compile.

    Args:
        multiple: outputs that stay together.
        itemsize: bytes of one.

    Raises: ValueError: there are so many inputs that nothing fits.
    """
    for count in range(1, outputs // multiple + 1):
        width = outputs // count
        if outputs % (count * multiple) or width > MOST_OUTPUTS:
            continue
        fitting = [
            MatmulBlocks(rows, width)
            for rows in range(LANES, MOST_TOKENS + 1, LANES)
            if 2 * (rows * (features + itemsize * width) + features * width) <= BLOCK_BYTES
            and rows * width * features <= MOST_WORK
        ]
        if fitting:
            return min(fitting, key=lambda blocks: _cost(blocks, tokens, features))
    raise ValueError(f"{features} inputs are too many for a block of {multiple} outputs")


def _cost(blocks: MatmulBlocks, tokens: int, features: int) -> int:
    """Products of numbers that all blocks together take the time of."""
    each = blocks.tokens * blocks.outputs * features + ENDS
    return -(-tokens // blocks.tokens) * each


def _multiply(count: int, activation: Activation | None, upright: bool, _, *references) -> None:  # type: ignore[no-untyped-def]
    parts, (scale, kernel, columns, *bias), out = (
        references[:count],
        references[count:-1],
        references[-1],
    )
    tokens, outputs = scale.shape[0], kernel.shape[1]
    for top in range(0, tokens, TILE):
        rows = slice(top, min(top + TILE, tokens))
        for left in range(0, outputs, TILE):
            some = slice(left, min(left + TILE, outputs))
            wide = _sums(parts, kernel, rows, some).astype(jnp.float32)
            wide = wide * scale[rows] * columns[:, some]
            if bias:
                wide = wide + bias[0][:, some]
            found = wide.astype(out.dtype)
            _write(out, rows, some, found if activation is None else activation(found), upright)


def _sums(parts, kernel, rows: slice, some: slice) -> Array:  # type: ignore[no-untyped-def]
    above, total = 0, None
    for part in parts:
        of_part = slice(above, above := above + part.shape[1])
        found = jnp.dot(part[rows], kernel[of_part, some], preferred_element_type=jnp.int32)
        total = found if total is None else total + found
    assert total is not None
    return total


def _write(out, rows: slice, some: slice, found: Array, upright: bool) -> None:  # type: ignore[no-untyped-def]
    if len(out.shape) == 2:
        out[rows, some] = found
        return
    dim = out.shape[1 if upright else 2]
    for start in range(some.start, some.stop, dim):
        head = found[:, start - some.start :][:, :dim]
        if upright:
            out[start // dim, :, rows] = head.T
        else:
            out[start // dim, rows] = head
