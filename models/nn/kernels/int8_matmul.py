"""8-bit matrix product kernels for TPUs that multiply int8 at twice bfloat16's rate.

XLA rounds activations and scales a product's outputs in separate passes. Here one kernel reads rows
once, finds each row's largest number and writes them in 8 bits. Another kernel multiplies them and
applies scales, bias and activation before it writes.

A block has all inputs of a product, so that partial sums stay at the matrix unit, and as many
outputs as VMEM holds: weights are read once, activations a few times.
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

MAX_VALUE = 127
"""Largest number of 8 bits. As in qwix, a row's largest number scales to half a step above it."""
VMEM_BYTES = 96 << 20
BLOCK_BYTES = 72 << 20
"""Part of VMEM_BYTES for blocks, which are double-buffered; the rest is for a tile's sums."""
MAX_OUTPUTS = 2048
"""Maximum outputs of a block. Activations are read once per block, which takes a quarter of the
time of a product of this size on a v6e."""
MAX_WORK = 1 << 33
"""Maximum multiplications in a block: 16,384 cycles of a v6e."""
ENDS = 400 << 19
"""Cost of beginning and ending a block, in multiplications: 400 cycles."""
MAX_TOKENS = 1024
TILE = 512
"""Tokens and outputs that are multiplied at once: a chip has two units of 256."""
ROUNDED_TOKENS = 256
"""Tokens per block of the rounding kernel."""

Activation = Callable[[Array], Array]
Part = Float[Array, "tokens _features"] | Float[Array, "_heads _dim tokens"]
"""Part of the inputs: [tokens, features], or [heads, dim, tokens] as `wide_attention` writes it."""
Values = Int8[Array, "tokens _features"]


CHIPS = ("TPU v6 lite",)
"""Chips, by `jax.Device.device_kind`, for which this kernel was compiled and found to be faster
than XLA's."""


class OfStack(NamedTuple):
    """Kernel of one layer, read from the stack of all layers: slicing it out would copy it."""

    values: Int8[Array, "layers in_features out_features"]
    number: Int32[Array, ""]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape [in, out] of the layer's kernel."""
        return self.values.shape[1:]


@runtime_checkable
class Product(Protocol):
    """Type of 8-bit products: activation(concatenated parts @ kernel · columns + bias).

    parts [tokens, features] each, kernel [in, out], columns and bias [out]. Returns [tokens, out]
    in the dtype of the parts; with heads [heads, tokens, out / heads], or if `tokens_last` [heads,
    out / heads, tokens].
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
        tokens_last: bool = False,
    ) -> Array:
        """Return the product of activations, rounded to 8 bits, with an 8-bit kernel."""


@dataclass(frozen=True)
class MatmulBlocks:
    """Block size of an 8-bit product: tokens and outputs."""

    tokens: int
    outputs: int


def eight_bit_for(device_kind: str) -> Product | None:
    """Return a chip's 8-bit product kernel; None: use XLA's product."""
    return product if device_kind in CHIPS else None


def product(
    parts: Sequence[Part],
    kernel: OfStack,
    columns: Float[Array, " out"],
    bias: Float[Array, " out"] | None,
    *,
    activation: Activation | None = None,
    heads: int = 0,
    tokens_last: bool = False,
    interpret: bool = False,
) -> Array:
    """Round activations and multiply: `Product` for inputs and outputs that fill lanes.

    Args:
        interpret: run without a TPU, slowly.
    """
    values, scale = rounded_rows(parts, interpret=interpret)
    wide_bias = None if bias is None else bias[None].astype(jnp.float32)
    return multiplied(
        values,
        scale,
        kernel,
        Epilogue(columns[None], wide_bias, activation, parts[0].dtype),
        heads=heads,
        tokens_last=tokens_last,
        interpret=interpret,
    )


def rounded_rows(
    parts: Sequence[Part], *, interpret: bool = False
) -> tuple[list[Values], Float[Array, "tokens 1"]]:
    """Round each row to 8 bits; return its parts and the row's float32 scale.

    The numbers are those of `qwix.quantize` in float32, except that a reciprocal replaces
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


def _round(count: int, *references: jax.Ref) -> None:
    parts, values, scale = references[:count], references[count:-1], references[-1]
    largest = jnp.zeros(scale.shape, jnp.float32)
    rows = [_rows(part) for part in parts]
    for part in rows:
        part_largest = jnp.abs(part).max(axis=1, keepdims=True)
        largest = jnp.maximum(largest, part_largest.astype(jnp.float32))
    scales = largest / (MAX_VALUE + 0.5)
    scales = jnp.where(scales < math.sqrt(jnp.finfo(jnp.float32).tiny), 1.0, scales)
    scale[...] = scales
    inverse = 1 / scales
    for part, out in zip(rows, values, strict=True):
        near = jnp.round(part.astype(jnp.float32) * inverse)
        out[...] = jnp.minimum(near, MAX_VALUE).astype(jnp.int32).astype(jnp.int8)


def _rows(part: jax.Ref) -> Array:
    """Return the rows of an activation part, transposed if it is stored by head."""
    values: Array = part[...]
    return values if values.ndim == 2 else values.reshape(-1, values.shape[2]).T


class Epilogue(NamedTuple):
    """Parameters of a product's output: activation(scale · sums · columns + bias), in a dtype."""

    columns: Float[Array, "1 out"]
    bias: Float[Array, "1 out"] | None
    activation: Activation | None
    dtype: DTypeLike


def multiplied(
    parts: Sequence[Values],
    scale: Float[Array, "tokens 1"],
    kernel: OfStack,
    epilogue: Epilogue,
    *,
    heads: int = 0,
    tokens_last: bool = False,
    interpret: bool = False,
) -> Float[Array, "tokens out"] | Float[Array, "heads _rows _columns"]:
    """Multiply concatenated 8-bit activations by an 8-bit kernel.

    Args:
        scale: of each row.
        heads: number of heads that outputs are stored by; 0: [tokens, out].
        tokens_last: store [heads, dim, tokens], as `wide_attention` reads queries and values.
    """
    columns, bias, activation, dtype = epilogue
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
    if tokens_last:
        shape = heads, dim, tokens
        out = pl.BlockSpec((across // dim, dim, rows), lambda j, i, _: (j, 0, i))
    output: Array = pl.pallas_call(
        partial(_multiply, len(parts), activation, tokens_last),
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
    return output


def blocks_for(
    tokens: int, features: int, outputs: int, multiple: int, itemsize: int
) -> MatmulBlocks:
    """Choose the block sizes of an 8-bit product.

    The most outputs that fit, so that activations are read least, and the tokens of lowest cost
    within the limit on compile time.

    Args:
        multiple: outputs that stay together.
        itemsize: bytes of one output.

    Raises: ValueError: no block fits so many inputs.
    """
    for count in range(1, outputs // multiple + 1):
        width = outputs // count
        if outputs % (count * multiple) or width > MAX_OUTPUTS:
            continue
        fitting = [
            MatmulBlocks(rows, width)
            for rows in range(LANES, MAX_TOKENS + 1, LANES)
            if 2 * (rows * (features + itemsize * width) + features * width) <= BLOCK_BYTES
            and rows * width * features <= MAX_WORK
        ]
        if fitting:
            return min(fitting, key=lambda blocks: _cost(blocks, tokens, features))
    raise ValueError(f"{features} inputs are too many for a block of {multiple} outputs")


def _cost(blocks: MatmulBlocks, tokens: int, features: int) -> int:
    """Estimate the time of all blocks of an 8-bit product, in multiplications."""
    each = blocks.tokens * blocks.outputs * features + ENDS
    return -(-tokens // blocks.tokens) * each


def _multiply(
    count: int,
    activation: Activation | None,
    tokens_last: bool,
    _: jax.Ref,
    *references: jax.Ref,
) -> None:
    parts, (scale, kernel, columns, *bias), out = (
        references[:count],
        references[count:-1],
        references[-1],
    )
    tokens, outputs = scale.shape[0], kernel.shape[1]
    for top in range(0, tokens, TILE):
        rows = slice(top, min(top + TILE, tokens))
        for left in range(0, outputs, TILE):
            across = slice(left, min(left + TILE, outputs))
            sums = _sums(parts, kernel, rows, across).astype(jnp.float32)
            sums = sums * scale[rows] * columns[:, across]
            if bias:
                sums = sums + bias[0][:, across]
            output = sums.astype(out.dtype)
            _write(
                out,
                rows,
                across,
                output if activation is None else activation(output),
                tokens_last,
            )


def _sums(parts: Sequence[jax.Ref], kernel: jax.Ref, rows: slice, some: slice) -> Array:
    above, total = 0, None
    for part in parts:
        of_part = slice(above, above := above + part.shape[1])
        product = jnp.dot(part[rows], kernel[of_part, some], preferred_element_type=jnp.int32)
        total = product if total is None else total + product
    assert total is not None
    return total


def _write(out: jax.Ref, rows: slice, some: slice, output: Array, tokens_last: bool) -> None:
    if len(out.shape) == 2:
        out[rows, some] = output
        return
    dim = out.shape[1 if tokens_last else 2]
    for start in range(some.start, some.stop, dim):
        head = output[:, start - some.start :][:, :dim]
        if tokens_last:
            out[start // dim, :, rows] = head.T
        else:
            out[start // dim, rows] = head
