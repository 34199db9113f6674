"""8-bit products under the traced layout, on chips that have a kernel in `int8_matmul`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int32

from models.nn.kernels.block_sizes import LANES
from models.nn.kernels.int8_matmul import Activation, OfStack, Product
from models.nn.quant.matmul import EightBitKernel
from models.parallel.axis_rules import Layout, MeshAxes
from models.parallel.trace_options import trace_options

Part = Float[Array, "batch tokens _features"] | Float[Array, "batch tokens _heads _dim"]
State = TypeVar("State")


def of_layer(stacks: State, number: Int32[Array, ""]) -> State:
    """Return one layer's parameters as references: the stacks, and the layer's number."""
    references: State = jax.tree.map(
        lambda leaf: leaf.replace(OfStack(leaf[...], number)),
        stacks,
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )
    return references


def is_read_in_place(path: tuple[Any, ...], leaf: Any) -> bool:
    """Return whether `int8_matmul` reads each layer's share of a stacked leaf in place.

    True for 8-bit values in device memory that are stored as they are split in use.
    """
    layout = _layout()
    if layout is None or trace_options().quant != "w8a8" or tuple(path[-2:]) != ("eight", "values"):
        return False
    if not isinstance(leaf, nnx.Variable) or leaf.ndim != 3 or "modulation" in leaf.axes:
        return False
    at_home = jax.typeof(leaf[...]).memory_space != jax.memory.Space.Host
    axes, shape = leaf.axes[-2:], leaf.shape[-2:]
    used = layout.in_use()
    return at_home and layout.split(axes, shape) == used.split(axes, shape) and _fills(used, leaf)


def _layout() -> Layout | None:
    """Return the traced layout if its chips have an 8-bit product kernel, else None."""
    layout = trace_options().layout
    if layout is None or layout.eight_bit is None or layout.platform is None:
        return None
    return layout


def _fills(used: Layout, values: nnx.Variable[Any]) -> bool:
    """Return whether each device's share of a kernel consists of whole register lanes."""
    shape = values.shape[-2:]
    split = used.split(values.axes[-2:], shape)
    return not any(
        size // used.devices(names) % LANES for size, names in zip(shape, split, strict=True)
    )


def product_by_kernel(
    kernel: EightBitKernel,
    parts: Sequence[Part],
    bias: Float[Array, " out"] | None,
    *,
    activation: Activation | None = None,
    heads: int = 0,
    tokens_last: bool = False,
) -> Array | None:
    """Compute activation(concatenated parts @ kernel + bias) by `int8_matmul`; None if unsupported.

    Each device rounds its share of a token with its own scale. If inputs are split, devices add up
    scaled results, in the dtype of the activations.

    Args:
        parts: features, or features by head, as `wide_attention` returns them.
        heads: return [batch, tokens, heads, dim] instead of [batch, tokens, out].
        tokens_last: store each head's tokens contiguously.
    """
    layout = _layout()
    if layout is None or not _fills(layout, kernel.values):
        return None
    used, values = layout.in_use(), kernel.values
    axes, shape = values.axes[-2:], values.shape[-2:]
    inputs, outputs = used.split(axes, shape)
    if len(parts) > 1 and (inputs or any(math.prod(part.shape[2:]) % LANES for part in parts)):
        flat = [part.reshape(*part.shape[:2], -1) for part in parts]
        parts = [jnp.concatenate(flat, axis=-1)]
    rows = ("batch", "tokens")
    out_axes = (*rows, axes[1], None) if heads else (*rows, axes[1])
    sizes = (*parts[0].shape[:2], *((heads, shape[1] // heads) if heads else shape[1:]))
    of_kernel: Any = (PartitionSpec(None, *used.spec(axes, shape)), PartitionSpec())
    vector = PartitionSpec(outputs or None)
    own_heads = heads // layout.devices(outputs)
    output: Array = jax.shard_map(
        partial(_local, layout.eight_bit, inputs, activation, (own_heads, tokens_last)),
        mesh=layout.mesh,
        in_specs=(
            [used.spec((*rows, axes[0], None)[: part.ndim], part.shape) for part in parts],
            OfStack(*of_kernel),
            vector,
            None if bias is None else vector,
        ),
        out_specs=used.spec(out_axes, sizes),
        check_vma=False,
    )(list(parts), _of_stack(values), kernel.scale[...], bias)
    return output


def _of_stack(values: nnx.Variable[Any]) -> OfStack:
    """Return a kernel as a reference to its stack; an unstacked kernel becomes a stack of one."""
    kernel = values.get_value()
    if isinstance(kernel, OfStack):
        return kernel
    return OfStack(kernel[None], jnp.zeros((), jnp.int32))


def _local(
    product: Product,
    inputs: MeshAxes,
    activation: Activation | None,
    by_head: tuple[int, bool],
    parts: Sequence[Part],
    kernel: OfStack,
    columns: Float[Array, " out"],
    bias: Float[Array, " out"] | None,
) -> Array:
    """Compute one device's share of an 8-bit product.

    Args:
        inputs: mesh axes that split the summed axis.
        by_head: number of heads on the device, and whether to store them `tokens_last`.
    """
    batch, tokens = parts[0].shape[:2]
    heads, tokens_last = by_head
    rows = [_flat(part) for part in parts]
    if inputs:
        out = jax.lax.psum(product(rows, kernel, columns, None), inputs)
        out = out if bias is None else out + bias.astype(out.dtype)
        out = out if activation is None else activation(out)
        return out.reshape(batch, tokens, *((heads, -1) if heads else (-1,)))
    out = product(
        rows, kernel, columns, bias, activation=activation, heads=heads, tokens_last=tokens_last
    )
    if not heads:
        return out.reshape(batch, tokens, -1)
    if tokens_last:
        return out.reshape(heads, -1, batch, tokens).transpose(2, 3, 0, 1)
    return out.reshape(heads, batch, tokens, -1).transpose(1, 2, 0, 3)


def _flat(part: Part) -> Array:
    """Reshape activations to [batch · tokens, features], or [heads, dim, batch · tokens]."""
    if part.ndim == 3:
        return part.reshape(-1, part.shape[-1])
    _, _, heads, dim = part.shape
    return part.transpose(2, 3, 0, 1).reshape(heads, dim, -1)
