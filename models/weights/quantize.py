"""Quantization of blocks to 8-bit weights while a checkpoint is loaded.

Each kernel is rounded once, per output column, from its float32 values. The exact kernel is freed
if no exact products are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Num

from models.nn.layers.parameterised import Linear
from models.nn.quant.matmul import EightBitKernel, has_inputs_last
from models.spec.quality_presets import EightBit

Module = TypeVar("Module", bound=nnx.Module)

Sharding = Callable[[str, nnx.Variable[Any]], jax.sharding.Sharding]

KERNEL, VALUES, SCALE = "kernel", "eight.values", "eight.scale"
"""Path endings of a layer's kernel, and of its rounded values and scales."""


@dataclass(frozen=True)
class Rounding:
    """Configuration of 8-bit kernels in a denoising network's blocks."""

    where: EightBit
    """Storage of rounded kernels: in addition to exact kernels, or instead of them."""
    kind: Any = jnp.int8
    """8-bit dtype, from `models.nn.quant.matmul.kind_of`."""

    def of(self, network: Module) -> Module:
        """Add 8-bit kernels to an abstract network's blocks, in place."""
        layers = [node for _, node in nnx.iter_graph(network) if isinstance(node, Linear)]
        for layer in layers:
            if "layers" in layer.kernel.axes:
                layer.eight = self._abstract(layer.kernel)
                if self.where == "instead":
                    layer.kernel = nnx.data(None)  # type: ignore[arg-type]
        return network

    def _abstract(self, kernel: nnx.Param[Any]) -> EightBitKernel:
        axes, shape = tuple(kernel.axes), tuple(kernel.shape)
        scale = jax.ShapeDtypeStruct((*shape[:-2], shape[-1]), jnp.float32)
        order = swap_last_axes if has_inputs_last(self.kind) else tuple
        values = jax.ShapeDtypeStruct(order(shape), self.kind)
        return EightBitKernel(
            nnx.Param(values, axes=order(axes), exact=jnp.dtype(kernel.dtype).name),
            nnx.Param(scale, axes=(*axes[:-2], axes[-1])),
        )


def swap_last_axes(axes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Swap the last two of a tuple of axes."""
    return (*axes[:-2], axes[-1], axes[-2])


def as_stored(leaves: Mapping[str, nnx.Variable[Any]]) -> dict[str, nnx.Variable[Any]]:
    """Return a network's leaves as a checkpoint stores them: exact kernels for 8-bit kernels.

    Args:
        leaves: by path; abstract.
    """
    stored: dict[str, nnx.Variable[Any]] = {}
    for path, leaf in leaves.items():
        if path.endswith(VALUES):
            stored[path.removesuffix(VALUES) + KERNEL] = _exact(leaf)
        elif not path.endswith(SCALE):
            stored[path] = leaf
    return stored


def _exact(values: nnx.Variable[Any]) -> nnx.Param[Any]:
    """Return the abstract exact kernel [*, in, out] that corresponds to 8-bit values."""
    shape, axes, sharding = tuple(values.shape), tuple(values.axes), values.get_value().sharding
    if has_inputs_last(values.dtype):
        shape, axes = swap_last_axes(shape), swap_last_axes(axes)
        if isinstance(sharding, NamedSharding):
            over = (*sharding.spec, *[None] * (len(shape) - len(sharding.spec)))
            sharding = NamedSharding(sharding.mesh, PartitionSpec(*swap_last_axes(over)))
    return nnx.Param(jax.ShapeDtypeStruct(shape, values.exact, sharding=sharding), axes=axes)


def as_used(
    path: str, array: Array, leaves: Mapping[str, nnx.Variable[Any]], sharding: Sharding | None
) -> dict[str, Array]:
    """Convert a stored array to the network's arrays, by path; frees it if unused.

    Args:
        path, array: of a leaf from `as_stored`.
        sharding: of each result; None: that of the stored array.
    """
    layer = path.removesuffix(KERNEL)
    paths = layer + VALUES, layer + SCALE
    result = {path: array} if path in leaves else {}
    if paths[0] in leaves:
        places = sharding and tuple(sharding(leaf_path, leaves[leaf_path]) for leaf_path in paths)
        program = _rounding(jnp.dtype(leaves[paths[0]].dtype), places)
        result |= zip(paths, jax.block_until_ready(program(array)), strict=True)
    if path not in result:
        array.delete()  # frees memory even if references remain
    return result


@lru_cache
def _rounding(kind: Any, shardings: Any) -> Callable[[Array], tuple[Array, Array]]:
    def program(kernel: Array) -> tuple[Array, Array]:
        return rounded(kernel, kind)

    return jax.jit(program, out_shardings=shardings)


def rounded(
    kernel: Float[Array, "*layers in out"], kind: Any
) -> tuple[Num[Array, "*layers _rows _columns"], Float[Array, "*layers out"]]:
    """Return a kernel's 8-bit values in storage order, and the scale of each column.

    The result has the format of `models.nn.quant.matmul.EightBitKernel`.
    """
    import qwix  # takes two seconds

    columns = [axis for axis in range(kernel.ndim) if axis != kernel.ndim - 2]
    quantized = qwix.quantize(kernel.astype(jnp.float32), kind, channelwise_axes=columns)
    values = jnp.swapaxes(quantized.qvalue, -1, -2) if has_inputs_last(kind) else quantized.qvalue
    return values, quantized.scale.squeeze(-2)
