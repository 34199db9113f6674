"""Convolutions of images that may lie in strips, and what the adapters of rows add to them."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from models.nn.layers.adapter_bank import AdapterBank
from models.nn.layers.conv_strips import with_neighbours
from models.nn.layers.parameterised import Conv
from models.parallel.row_adapters import RowAdapters
from models.parallel.trace_options import trace_options


def convolved(
    layer: Conv, x: Shaped[Array, "_strips *_places _in"]
) -> Shaped[Array, "_strips *_places_after _out"]:
    """layer(x). In strips, its padding names rows and columns."""
    return adapted(layer, x, _convolved(layer, x))


def _convolved(layer: Conv, x: Array) -> Array:
    if trace_options().strips == 1:
        return layer(x)
    rows, (left, right) = paddings(layer)
    out = jax.lax.conv_general_dilated(
        with_neighbours(x, left, right),
        layer.kernel[...].astype(x.dtype),
        _strides(layer),
        [rows, (0, 0)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return out if layer.bias is None else out + layer.bias[...].astype(x.dtype)


def adapted(layer: Conv, x: Array, out: Array) -> Array:
    """Add what the rows' adapters make of a convolution's inputs to its outputs."""
    rows = trace_options().adapters
    if layer.bank is None or rows is None:
        return out
    return out + _change(layer, layer.bank, x, rows)


def _change(layer: Conv, bank: AdapterBank, x: Array, rows: RowAdapters) -> Array:
    """Compute each row's change: its few channels at every place of the window, side by side.

    One product for all places of the window, whose results are then added up from where they lie:
    a convolution by rows of their own would be one of as many groups as rows.
    """
    pages = bank.of_rows(x, rows)
    by_place = jnp.einsum("bsi,bjti->bstj", x.reshape(len(x), -1, x.shape[-1]), pages.down)
    padded = _padded(layer, by_place.reshape(*x.shape[:-1], -1))
    window, strides = layer.kernel.shape[:-2], _strides(layer)
    sizes = [
        (size - tap) // stride + 1
        for size, tap, stride in zip(padded.shape[1:-1], window, strides, strict=True)
    ]
    ranks = by_place.shape[-1]
    hidden = jnp.zeros((len(x), *sizes, ranks), x.dtype)
    for number, corner in enumerate(itertools.product(*map(range, window))):
        stops = [
            first + (size - 1) * stride + 1
            for first, size, stride in zip(corner, sizes, strides, strict=True)
        ]
        hidden += jax.lax.slice(
            padded,
            (0, *corner, number * ranks),
            (len(x), *stops, (number + 1) * ranks),
            (1, *strides, 1),
        )
    return pages.raised(hidden)


def _padded(layer: Conv, x: Array) -> Array:
    """Return images with the zeros around them, or the columns of neighbouring strips."""
    sides = paddings(layer)
    if trace_options().strips > 1:
        rows, (left, right) = sides
        x, sides = with_neighbours(x, left, right), [rows, (0, 0)]
    return jnp.pad(x, ((0, 0), *sides, (0, 0)))


def paddings(layer: Conv) -> list[tuple[int, int]]:
    """Return the zeros in front of and behind each axis of an image."""
    axes = len(layer.kernel.shape) - 2
    both = np.broadcast_to(np.asarray(layer.padding), (axes, 2)).tolist()
    return [(first, last) for first, last in both]


def _strides(layer: Conv) -> list[int]:
    strides: list[int] = np.broadcast_to(
        np.asarray(layer.strides), len(layer.kernel.shape) - 2
    ).tolist()
    return strides
