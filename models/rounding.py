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
from jaxtyping import Array, Float, Num

from models.nn.eight_bit import Rounded
from models.nn.layers import Linear
from models.quality import EightBit

Module = TypeVar("Module", bound=nnx.Module)

Sharding = Callable[[str, nnx.Variable], jax.sharding.Sharding]

KERNEL, VALUES, SCALE = "kernel", "eight.values", "eight.scale"
"""Ends of paths: of a layer's kernel, and of what it is rounded to."""


@dataclass(frozen=True)
class Rounding:
    """How a denoising network has its blocks' kernels."""

    where: EightBit
    """Beside exact ones, or in their place."""
    kind: Any = jnp.int8
    """The numbers of 8 bits, by `models.nn.eight_bit.kind_of`."""

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
        axes, shape = kernel.axes, kernel.shape
        values = jax.ShapeDtypeStruct(shape, self.kind)
        scale = jax.ShapeDtypeStruct((*shape[:-2], shape[-1]), jnp.float32)
        return Rounded(
            nnx.Param(values, axes=axes, exact=jnp.dtype(kernel.dtype).name),
            nnx.Param(scale, axes=(*axes[:-2], axes[-1])),
        )


def as_stored(leaves: Mapping[str, nnx.Variable]) -> dict[str, nnx.Variable]:
    """A network's leaves as a checkpoint has them: kernels where they are of 8 bits here.

    Args:
        leaves: by path; abstract.
    """
    found: dict[str, nnx.Variable] = {}
    for path, leaf in leaves.items():
        if path.endswith(VALUES):
            place = leaf.get_value().sharding
            exact = jax.ShapeDtypeStruct(leaf.shape, leaf.exact, sharding=place)
            found[path.removesuffix(VALUES) + KERNEL] = nnx.Param(exact, axes=leaf.axes)
        elif not path.endswith(SCALE):
            found[path] = leaf
    return found


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
) -> tuple[Num[Array, "*layers in out"], Float[Array, "*layers out"]]:
    """Its values in 8 bits, and the scale of each column."""
    import qwix  # two seconds, for those who ask

    columns = [axis for axis in range(kernel.ndim) if axis != kernel.ndim - 2]
    found = qwix.quantize(kernel.astype(jnp.float32), kind, channelwise_axes=columns)
    return found.qvalue, found.scale.squeeze(-2)
