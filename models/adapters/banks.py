"""Adapter banks of networks, and the contents of their pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from models.adapters.files.adapter import Changes, LowRank, StoredArray
from models.adapters.files.reduction import low_rank
from models.adapters.layer_names import adaptable_modules, has_kernel, kernel_shape
from models.nn.layers.adapter_bank import AdapterBank
from models.nn.layers.adapter_magnitudes import IS_SET, MAGNITUDES, REST
from models.nn.layers.parameterised import Conv, Linear
from models.parallel.dtypes import used_dtype
from models.parallel.row_adapters import AdapterPages
from models.spec.lora import PAGE_RANK
from models.weights.loader import Sharding

Module = TypeVar("Module", bound=nnx.Module)

DOWN, UP, BIAS = "bank.down", "bank.up", "bank.bias"
"""Path endings of a bank's arrays."""


def with_banks(network: Module, pages: int, sharding: Sharding | None = None) -> Module:
    """Add a bank of empty pages to each layer that adapters can change, in place.

    Banks of an abstract network are abstract.

    Args:
        sharding: of each array; None: JAX's default device.
    """
    for path, layer in list(adaptable_modules(network)):
        layer.bank = _bank(path, layer, pages, sharding)
    return network


def _bank(path: str, layer: Linear | Conv, pages: int, sharding: Sharding | None) -> AdapterBank:
    layers, (in_features, out_features, window) = kernel_shape(layer)
    count: tuple[int, ...] = () if layers is None else (layers,)
    stacked: tuple[str | None, ...] = () if layers is None else ("layers",)
    in_axis, out_axis = _axes(layer)
    no_axes = (None,) * len(window)
    shapes = {
        DOWN: (
            (*count, pages, PAGE_RANK, *window, in_features),
            (*stacked, None, None, *no_axes, in_axis),
        ),
        UP: ((*count, pages, PAGE_RANK, out_features), (*stacked, None, None, out_axis)),
        BIAS: ((*count, pages, out_features), (*stacked, None, out_axis)),
    }
    is_abstract = isinstance(_any_array(layer), jax.ShapeDtypeStruct)
    dtype = _dtype(layer)

    def create(end: str) -> AdapterPages:
        shape, axes = shapes[end]
        abstract = AdapterPages(jax.ShapeDtypeStruct(shape, dtype), axes=axes)
        place = sharding(f"{path}.{end}", abstract) if sharding else None
        if is_abstract:
            return AdapterPages(jax.ShapeDtypeStruct(shape, dtype, sharding=place), axes=axes)
        return AdapterPages(_zeros(shape, dtype, place), axes=axes)

    return AdapterBank(*(create(end) for end in shapes))


def _any_array(layer: Linear | Conv) -> Any:
    """Return the kernel, or the scales of a kernel that has only 8 bits."""
    if has_kernel(layer):
        return layer.kernel.get_value()
    assert isinstance(layer, Linear) and layer.eight is not None
    return layer.eight.scale.get_value()


def _dtype(layer: Linear | Conv) -> DTypeLike:
    """Return the dtype that a layer with an adapter bank computes in."""
    if has_kernel(layer):
        return used_dtype(layer.kernel)
    assert isinstance(layer, Linear) and layer.eight is not None
    dtype: DTypeLike = np.dtype(layer.eight.values.exact)
    return dtype


def _axes(layer: Linear | Conv) -> tuple[str | None, str | None]:
    """Return the logical axes of a layer's inputs and outputs."""
    if has_kernel(layer):
        in_axis, out_axis = layer.kernel.axes[-2:]
        return in_axis, out_axis
    assert isinstance(layer, Linear) and layer.eight is not None
    axes = set(layer.eight.values.axes[-2:])
    out_axis = layer.eight.scale.axes[-1]
    return next(iter(axes - {out_axis}), out_axis), out_axis


def _zeros(shape: tuple[int, ...], dtype: DTypeLike, place: Any) -> jax.Array:
    zeros: jax.Array = _zeros_of(shape, np.dtype(dtype), place)()
    return zeros


@cache
def _zeros_of(shape: tuple[int, ...], dtype: np.dtype[Any], place: Any) -> Callable[[], jax.Array]:
    """Return a cached program that creates zeros: hundreds of layers have equal shapes."""
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=place)


def page_arrays(
    network: nnx.Module, changes: Changes, pages: int, has_magnitudes: bool = False
) -> dict[str, np.ndarray]:
    """Return an adapter's contents for that many pages of each bank, by array path.

    Layers that it does not change get zeros, since the pages may contain another adapter. Changes
    of a higher rank than the pages have are reduced. Magnitudes (DoRA) are in the last page.

    Args:
        network: with banks; may be abstract.
        has_magnitudes: whether changes of another network have magnitudes.
    """
    has_magnitudes |= any(change.magnitude is not None for change in changes.values())
    by_path: dict[str, list[tuple[int | None, LowRank]]] = defaultdict(list)
    for (path, number), change in changes.items():
        kept, _ = low_rank(change, PAGE_RANK * (pages - has_magnitudes))
        by_path[path].append((number, kept))
    return {
        path: array
        for module, layer in adaptable_modules(network)
        if layer.bank is not None
        for path, array in _page_arrays(module, layer.bank, by_path[module], pages)
    }


def _page_arrays(
    path: str,
    bank: AdapterBank,
    changes: list[tuple[int | None, LowRank]],
    pages: int,
) -> Iterator[tuple[str, np.ndarray]]:
    arrays = {end: _empty(leaf, pages) for end, leaf in _leaves(bank)}
    for number, change in changes:
        _fill(
            {end: stack if number is None else stack[number] for end, stack in arrays.items()},
            change,
        )
    yield from ((f"{path}.{end}", array) for end, array in arrays.items())


def _leaves(bank: AdapterBank) -> tuple[tuple[str, AdapterPages], ...]:
    return (DOWN, bank.down), (UP, bank.up), (BIAS, bank.bias)


def _empty(leaf: AdapterPages, pages: int) -> np.ndarray:
    """Return zeros with a bank array's shape and dtype, but with that many pages."""
    axis = page_axis(leaf)
    shape = (*leaf.shape[:axis], pages, *leaf.shape[axis + 1 :])
    return np.zeros(shape, leaf.dtype)


def page_axis(leaf: AdapterPages) -> int:
    """Return the index of the page axis of a bank's array."""
    return 1 if "layers" in leaf.axes else 0


def _fill(pages: Mapping[str, np.ndarray], change: LowRank) -> None:
    """Write the low-rank factors of a layer's change to the pages of its bank, in order."""
    dtype = pages[DOWN].dtype
    down = np.moveaxis(_numbers(change.down, 1.0, dtype), 1, -1)  # [rank, *window, in]
    _copy(pages[DOWN].reshape(-1, *pages[DOWN].shape[2:]), down)
    _copy(pages[UP].reshape(-1, pages[UP].shape[-1]), _numbers(change.up, change.scale, dtype).T)
    if change.bias is not None:
        _copy(pages[BIAS], _numbers(change.bias, change.bias_scale, dtype)[None])
    if change.magnitude is not None:
        page = pages[DOWN if change.magnitude.of_inputs else UP][-1]
        _fill_magnitudes(page.reshape(PAGE_RANK, -1, page.shape[-1])[:, 0], change.magnitude.values)


def _fill_magnitudes(page: np.ndarray, magnitudes: np.ndarray) -> None:
    """Write DoRA magnitudes to the page of a bank's array that holds them, [ranks, features]."""
    page[MAGNITUDES] = magnitudes
    page[REST] = magnitudes - page[MAGNITUDES].astype(np.float32)
    page[IS_SET] = 1


def _numbers(stored: StoredArray, scale: float, dtype: np.dtype[Any]) -> np.ndarray:
    """Scale and cast the values of an adapter's array; unchanged values are not copied."""
    if scale == 1.0 and stored.is_bfloat16 and dtype == jnp.bfloat16:
        return stored.array.view(dtype)
    if scale == 1.0 and stored.array.dtype == dtype:
        return stored.array
    return (stored.float32() * np.float32(scale)).astype(dtype, copy=False)


def _copy(pages: np.ndarray, numbers: np.ndarray) -> None:
    """Copy values to a page's first rows as integers: NumPy copies bfloat16 element by element."""
    bits = f"u{pages.itemsize}"
    pages[: len(numbers)].view(bits)[...] = numbers.view(bits)
