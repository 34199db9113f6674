"""Banks of adapters in networks, and what fills their pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from models.adapters.adapter import Changes, LowRank, Place
from models.adapters.layer_names import kernel_shape
from models.nn.layers.adapter_bank import PAGE_RANK, AdapterBank
from models.nn.layers.parameterised import Linear
from models.parallel.dtypes import used_dtype
from models.parallel.row_adapters import AdapterPages
from models.weights.loader import Sharding

Module = TypeVar("Module", bound=nnx.Module)

DOWN, UP, BIAS = "bank.down", "bank.up", "bank.bias"
"""Ends of the paths of a bank's arrays."""


def with_banks(network: Module, pages: int, sharding: Sharding | None = None) -> Module:
    """Give each layer that an adapter can change a bank of empty pages. Changes the network.

    Of an abstract network they are abstract.

    Args:
        sharding: where each array goes; None: to JAX's default device.
    """
    for parts, layer in list(nnx.iter_graph(network)):
        if isinstance(layer, Linear):
            layer.bank = _bank(".".join(map(str, parts)), layer, pages, sharding)
    return network


def _bank(path: str, layer: Linear, pages: int, sharding: Sharding | None) -> AdapterBank:
    kernel: nnx.Param = layer.kernel if layer.eight is None else layer.eight.scale
    *layers, in_features, out_features = kernel_shape(layer)
    stacked: tuple[Any, ...] = ("layers",) if layers else ()
    in_axis, out_axis = _axes(layer)
    shapes = {
        DOWN: ((*layers, pages, PAGE_RANK, in_features), (*stacked, None, None, in_axis)),
        UP: ((*layers, pages, PAGE_RANK, out_features), (*stacked, None, None, out_axis)),
        BIAS: ((*layers, pages, out_features), (*stacked, None, out_axis)),
    }
    is_abstract = isinstance(kernel.get_value(), jax.ShapeDtypeStruct)
    dtype = used_dtype(layer.kernel) if _has_kernel(layer) else _exact_dtype(layer)

    def made(end: str) -> AdapterPages:
        shape, axes = shapes[end]
        abstract = AdapterPages(jax.ShapeDtypeStruct(shape, dtype), axes=axes)
        place = sharding(f"{path}.{end}", abstract) if sharding else None
        if is_abstract:
            return AdapterPages(jax.ShapeDtypeStruct(shape, dtype, sharding=place), axes=axes)
        return AdapterPages(_zeros(shape, dtype, place), axes=axes)

    return AdapterBank(*(made(end) for end in shapes))


def _has_kernel(layer: Linear) -> bool:
    return layer.kernel is not None and layer.kernel.get_value() is not None


def _axes(layer: Linear) -> tuple[str | None, str | None]:
    """Return the logical axes of a layer's inputs and outputs."""
    if _has_kernel(layer):
        in_axis, out_axis = layer.kernel.axes[-2:]
        return in_axis, out_axis
    assert layer.eight is not None
    axes = set(layer.eight.values.axes[-2:])
    out_axis = layer.eight.scale.axes[-1]
    return next(iter(axes - {out_axis}), out_axis), out_axis


def _exact_dtype(layer: Linear) -> np.dtype:
    assert layer.eight is not None
    return np.dtype(layer.eight.values.exact)


def _zeros(shape: tuple[int, ...], dtype: DTypeLike, place: Any) -> jax.Array:
    zeros: jax.Array = jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=place)()
    return zeros


def page_arrays(network: nnx.Module, changes: Changes, pages: int) -> dict[str, np.ndarray]:
    """Return what so many pages of each bank of a network hold of an adapter, by the arrays' paths.

    Layers that it does not change have zeros there, as the pages may have held another's.

    Args:
        network: with banks; may be abstract.
    """
    return {path: array for path, array in _page_arrays(network, changes, pages)}


def _page_arrays(
    network: nnx.Module, changes: Changes, pages: int
) -> Iterator[tuple[str, np.ndarray]]:
    for parts, layer in nnx.iter_graph(network):
        if not isinstance(layer, Linear) or layer.bank is None:
            continue
        path, bank = ".".join(map(str, parts)), layer.bank
        own = {end: _empty(leaf, pages) for end, leaf in _leaves(bank)}
        stacked = "layers" in bank.down.axes
        for number in range(bank.down.shape[0]) if stacked else (None,):
            change = changes.get(Place(path, number))
            if change is not None:
                _fill(
                    {end: one if number is None else one[number] for end, one in own.items()},
                    change,
                )
        yield from ((f"{path}.{end}", array) for end, array in own.items())


def _leaves(bank: AdapterBank) -> tuple[tuple[str, AdapterPages], ...]:
    return (DOWN, bank.down), (UP, bank.up), (BIAS, bank.bias)


def _empty(leaf: AdapterPages, pages: int) -> np.ndarray:
    """Return zeros of the leaf's shape and type, with so many pages."""
    axis = page_axis(leaf)
    shape = (*leaf.shape[:axis], pages, *leaf.shape[axis + 1 :])
    return np.zeros(shape, leaf.dtype)


def page_axis(leaf: AdapterPages) -> int:
    """Return the axis of an array's pages."""
    return 1 if "layers" in leaf.axes else 0


def _fill(own: Mapping[str, np.ndarray], change: LowRank) -> None:
    """Write a layer's ranks into its pages, in their order."""
    for end, ranks in ((DOWN, change.down), (UP, change.up.T)):
        flat = own[end].reshape(-1, own[end].shape[-1])
        flat[: change.rank] = ranks
    if change.bias is not None:
        own[BIAS][0] = change.bias
