"""Weights of 8 bits: which layers have them, and how they come from those of a checkpoint.

A kernel is rounded once, as it is loaded, column by column; what has been rounded is let go where
nobody asks for exact products. The numbers are those of the kernel in float32.
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
from models.nn.quant.matmul import Rounded, is_turned
from models.spec.quality_presets import EightBit

Module = TypeVar("Module", bound=nnx.Module)

Sharding = Callable[[str, nnx.Variable], jax.sharding.Sharding]

KERNEL, VALUES, SCALE = "kernel", "eight.values", "eight.scale"
"""Ends of paths: of a layer's kernel, and of what it is rounded to."""


@dataclass(frozen=True)
class Rounding:
    """Rounding of the kernels in a denoising network's blocks."""

    where: EightBit
    """Place of rounded kernels: beside exact ones, or instead of them."""
    kind: Any = jnp.int8
    """The numbers of 8 bits, by `models.nn.quant.matmul.kind_of`."""

    def of(self, network: Module) -> Module:
        """The same network, abstract, with its blocks' kernels so. Changes it."""
        layers = [node for _, node in nnx.iter_graph(network) if isinstance(node, Linear)]
        for layer in layers:
            if "layers" in layer.kernel.axes:
                layer.eight = self._abstract(layer.kernel)
                if self.where == "instead":
                    layer.kernel = nnx.data(None)  # type: ignore[arg-type]
        return network

    def _abstract(self, kernel: nnx.Param) -> Rounded:
        axes, shape = tuple(kernel.axes), tuple(kernel.shape)
        scale = jax.ShapeDtypeStruct((*shape[:-2], shape[-1]), jnp.float32)
        lies = turned if is_turned(self.kind) else tuple
        values = jax.ShapeDtypeStruct(lies(shape), self.kind)
        return Rounded(
            nnx.Param(values, axes=lies(axes), exact=jnp.dtype(kernel.dtype).name),
            nnx.Param(scale, axes=(*axes[:-2], axes[-1])),
        )


def turned(axes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The last two the other way round."""
    return (*axes[:-2], axes[-1], axes[-2])


def as_stored(leaves: Mapping[str, nnx.Variable]) -> dict[str, nnx.Variable]:
    """A network's leaves as a checkpoint has them: kernels where they are of 8 bits here.

    Args:
        leaves: by path; abstract.
    """
    found: dict[str, nnx.Variable] = {}
    for path, leaf in leaves.items():
        if path.endswith(VALUES):
            found[path.removesuffix(VALUES) + KERNEL] = _exact(leaf)
        elif not path.endswith(SCALE):
            found[path] = leaf
    return found


def _exact(values: nnx.Variable) -> nnx.Param:
    """The kernel that is rounded to these, abstract: [*, in, out]."""
    shape, axes, place = tuple(values.shape), tuple(values.axes), values.get_value().sharding
    if is_turned(values.dtype):
        shape, axes = turned(shape), turned(axes)
        if isinstance(place, NamedSharding):
            over = (*place.spec, *[None] * (len(shape) - len(place.spec)))
            place = NamedSharding(place.mesh, PartitionSpec(*turned(over)))
    return nnx.Param(jax.ShapeDtypeStruct(shape, values.exact, sharding=place), axes=axes)


def as_used(
    path: str, array: Array, leaves: Mapping[str, nnx.Variable], sharding: Sharding | None
) -> dict[str, Array]:
    """The arrays that the network has of one that is stored, by path. One that it has not is freed.

    Args:
        path, array: of what `as_stored` names.
        sharding: where each goes; None: wherever the stored one is.
    """
    layer = path.removesuffix(KERNEL)
    paths = layer + VALUES, layer + SCALE
    found = {path: array} if path in leaves else {}
    if paths[0] in leaves:
        places = sharding and tuple(sharding(one, leaves[one]) for one in paths)
        program = _rounding(jnp.dtype(leaves[paths[0]].dtype), places)
        found |= zip(paths, jax.block_until_ready(program(array)), strict=True)
    if path not in found:
        array.delete()  # not left to whoever else may still hold a reference
    return found


@lru_cache
def _rounding(kind: Any, places: Any) -> Callable[[Array], tuple[Array, Array]]:
    def program(kernel: Array) -> tuple[Array, Array]:
        return rounded(kernel, kind)

    return jax.jit(program, out_shardings=places)


def rounded(
    kernel: Float[Array, "*layers in out"], kind: Any
) -> tuple[Num[Array, "*layers _rows _columns"], Float[Array, "*layers out"]]:
    """Return a kernel's values in 8 bits as they lie, and the scale of each column.

    As `models.nn.quant.matmul.Rounded` has them.
    """
    import qwix  # two seconds, for those who ask

    columns = [axis for axis in range(kernel.ndim) if axis != kernel.ndim - 2]
    found = qwix.quantize(kernel.astype(jnp.float32), kind, channelwise_axes=columns)
    values = jnp.swapaxes(found.qvalue, -1, -2) if is_turned(kind) else found.qvalue
    return values, found.scale.squeeze(-2)
