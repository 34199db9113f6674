"""Convolutions of images, which may be cut into strips, and the rows' adapters of them."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from models.nn.layers.adapter_bank import RowPages, product
from models.nn.layers.adapter_magnitudes import with_magnitudes
from models.nn.layers.conv_strips import with_neighbours
from models.nn.layers.parameterised import Conv
from models.parallel.trace_options import trace_options


def convolved(
    layer: Conv, x: Shaped[Array, "_strips *_places _in"]
) -> Shaped[Array, "_strips *_places_after _out"]:
    """Convolve `x`, and add the rows' adapters; images in strips need numeric padding by axis."""
    return adapted(layer, x, _convolved(layer, scaled_inputs(layer, x)))


def _convolved(layer: Conv, x: Array) -> Array:
    if trace_options().strips == 1:
        return layer(x)
    out = _by_kernel(layer, x, layer.kernel[...].astype(x.dtype))
    return out if layer.bias is None else out + layer.bias[...].astype(x.dtype)


def _by_kernel(layer: Conv, x: Array, kernel: Array) -> Array:
    """Convolve with a kernel of the layer's window, also for images in strips."""
    sides: list[tuple[int, int]] = paddings(layer)
    if trace_options().strips > 1:
        rows, (left, right) = sides
        x, sides = with_neighbours(x, left, right), [rows, (0, 0)]
    letters = "TDHW"[4 - len(sides) :]
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        _strides(layer),
        sides,
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
    )


def adapted(layer: Conv, x: Array, out: Array) -> Array:
    """Add what the rows' adapters compute from a convolution's inputs to its outputs."""
    rows = trace_options().adapters
    if layer.bank is None or rows is None:
        return out
    if rows.owners is None:
        return layer.bank.added(out, _change(layer, layer.bank.of_rows(x, rows), x))
    pages, gains = with_magnitudes(layer.bank, layer.kernel[...], x, rows)
    bias = None if layer.bias is None else layer.bias[...]
    return layer.bank.added(gains.stretched(out, bias, 1), _change(layer, pages, x))


def scaled_inputs(layer: Conv, x: Array) -> Array:
    """Scale a convolution's inputs by the input magnitudes of the rows' adapters."""
    rows = trace_options().adapters
    if layer.bank is None or rows is None or rows.owners is None:
        return x
    return with_magnitudes(layer.bank, layer.kernel[...], x, rows)[1].read(x)


def _change(layer: Conv, pages: RowPages, x: Array) -> Array:
    if len(pages.down) > 1 or _is_split():
        return pages.raised(_of_rows(layer, pages, x))
    window = layer.kernel.shape[:-2]
    down = jnp.moveaxis(pages.down[0], 0, -1)  # [places of the window, in, ranks]
    return pages.raised(_by_kernel(layer, x, down.reshape(*window, *down.shape[1:])))


def _is_split() -> bool:
    """Return whether devices share an image or its channels (models.nn.layers.split_channels).

    XLA's partitioner may not split convolutions by both.
    """
    layout = trace_options().layout
    return layout is not None and layout.size("rows") * layout.size("channels") > 1


def _of_rows(layer: Conv, pages: RowPages, x: Array) -> Array:
    """Compute the low-rank activations of each row's adapters: a convolution to few channels.

    One product computes all positions of the window, and shifted slices are then added up. A
    convolution with kernels per row would need as many groups as rows.
    """
    by_place = product(x.reshape(len(x), -1, x.shape[-1]), pages.down, "jti", "tj")
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
    return hidden


def _padded(layer: Conv, x: Array) -> Array:
    """Pad images with zeros, or strips of images with the columns of the adjacent strips."""
    sides = paddings(layer)
    if trace_options().strips > 1:
        rows, (left, right) = sides
        x, sides = with_neighbours(x, left, right), [rows, (0, 0)]
    return jnp.pad(x, ((0, 0), *sides, (0, 0)))


def paddings(layer: Conv) -> list[tuple[int, int]]:
    """Return a convolution's zero padding before and after each axis of an image."""
    axes = len(layer.kernel.shape) - 2
    both = np.broadcast_to(np.asarray(layer.padding), (axes, 2)).tolist()
    return [(first, last) for first, last in both]


def _strides(layer: Conv) -> list[int]:
    strides: list[int] = np.broadcast_to(
        np.asarray(layer.strides), len(layer.kernel.shape) - 2
    ).tolist()
    return strides
