"""Products in 8 bits by the layout that is traced for, where its chips have a kernel for them."""

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
from models.nn.quant.matmul import Rounded
from models.parallel.axis_rules import Layout, MeshAxes
from models.parallel.trace_options import trace_options

Part = Float[Array, "batch tokens _features"] | Float[Array, "batch tokens _heads _dim"]
State = TypeVar("State")


def of_layer(stacks: State, number: Int32[Array, ""]) -> State:
    """Return the parameters of one layer: each is its stack and the layer's number."""
    return jax.tree.map(
        lambda leaf: leaf.replace(OfStack(leaf[...], number)),
        stacks,
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )


def stays_stacked(path: tuple[Any, ...], leaf: Any) -> bool:
    """Return whether our kernel reads each layer's share of a stacked leaf where it lies.

    So it does those of 8 bits, on a device as it is used.
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
    """The one that is traced for, where its chips have our kernel."""
    layout = trace_options().layout
    if layout is None or layout.eight_bit is None or layout.platform is None:
        return None
    return layout


def _fills(used: Layout, values: nnx.Variable) -> bool:
    """Return whether each device's share of a kernel fills lanes."""
    shape = values.shape[-2:]
    split = used.split(values.axes[-2:], shape)
    return not any(
        size // used.devices(names) % LANES for size, names in zip(shape, split, strict=True)
    )


def product_by_kernel(
    kernel: Rounded,
    parts: Sequence[Part],
    bias: Float[Array, " out"] | None,
    *,
    activation: Activation | None = None,
    heads: int = 0,
    upright: bool = False,
) -> Array | None:
    """activation(parts, side by side, @ kernel + bias), or None where it is not for our kernel.

    Each device rounds what it has of a token by a scale of its own: where inputs are split, what
    is added up between devices has been scaled, in the dtype of the activations.

    Args:
        parts: features by head may be apart: our attention leaves them so.
        heads: [batch, tokens, heads, dim] instead of [batch, tokens, out].
        upright: in memory each head's tokens side by side.
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
    found: Array = jax.shard_map(
        partial(_local, layout.eight_bit, inputs, activation, (own_heads, upright)),
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
    return found


def _of_stack(values: nnx.Variable) -> OfStack:
    """Return where a layer's kernel lies; one that is in no stack is a stack of one."""
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
    """Compute one device's part.

    Args:
        inputs: mesh axes that split what is summed over.
        by_head: how many heads it has, and whether they are to be upright.
    """
    batch, tokens = parts[0].shape[:2]
    heads, upright = by_head
    rows = [_flat(part) for part in parts]
    if inputs:
        out = jax.lax.psum(product(rows, kernel, columns, None), inputs)
        out = out if bias is None else out + bias.astype(out.dtype)
        out = out if activation is None else activation(out)
        return out.reshape(batch, tokens, *((heads, -1) if heads else (-1,)))
    out = product(rows, kernel, columns, bias, activation=activation, heads=heads, upright=upright)
    if not heads:
        return out.reshape(batch, tokens, -1)
    if upright:
        return out.reshape(heads, -1, batch, tokens).transpose(2, 3, 0, 1)
    return out.reshape(heads, batch, tokens, -1).transpose(1, 2, 0, 3)


def _flat(part: Part) -> Array:
    """The rows of a batch in a row, or heads upright, as our attention has them in memory."""
    if part.ndim == 3:
        return part.reshape(-1, part.shape[-1])
    _, _, heads, dim = part.shape
    return part.transpose(2, 3, 0, 1).reshape(heads, dim, -1)
