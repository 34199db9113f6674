"""Convolutions of images whose channels are split over devices, by outputs or by inputs.

The split is written with shard_map. If the rows of an image are split as well, XLA's partitioner
doubles the result of some of these convolutions (seen with jax 0.10.2 if two devices share the rows
of 32 channels; tests/parallel/test_tensor.py has the case).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from models.nn.layers.convolution import adapted, convolved, scaled_inputs
from models.nn.layers.parameterised import Conv
from models.parallel.axis_rules import Layout, MeshAxes
from models.parallel.trace_options import trace_options

Features = Float[Array, "batch _height _width _channels"]

_NHWC = ("NHWC", "HWIO", "NHWC")


def split_outputs(conv: Conv, x: Features) -> Features:
    """Compute conv(x), each device its own output channels; unsplit if they do not divide."""
    layout, names = _shares(conv.out_features)
    if layout is None or not names:
        return convolved(conv, x)

    def local_outputs(x: Array, kernel: Array, bias: Array) -> Array:
        return _convolved(conv, x, kernel) + bias

    last = PartitionSpec(None, None, None, names)
    specs = (PartitionSpec(), last, PartitionSpec(names))
    read = scaled_inputs(conv, x)
    out = _by_hand(local_outputs, layout, names, specs, last)(read, conv.kernel[...], _bias(conv))
    return adapted(conv, x, out)


def split_inputs(conv: Conv, x: Features) -> Features:
    """Compute conv(x), each device from its own channels of `x`; all devices get the sum."""
    layout, names = _shares(conv.in_features)
    if layout is None or not names:
        return convolved(conv, x)

    def summed_products(x: Array, kernel: Array) -> Array:
        total: Array = jax.lax.psum(_convolved(conv, x, kernel), names)
        return total

    channels = PartitionSpec(None, None, None, names)
    specs = (channels, PartitionSpec(None, None, names, None))
    read = scaled_inputs(conv, x)
    summed = _by_hand(summed_products, layout, names, specs, PartitionSpec())(
        read, conv.kernel[...]
    )
    return adapted(conv, x, summed + _bias(conv))


def _shares(channels: int) -> tuple[Layout | None, MeshAxes]:
    layout = trace_options().layout
    return layout, () if layout is None else layout.split(("channels",), (channels,))[0]


def _by_hand(
    function: Callable[..., Array],
    layout: Layout,
    names: MeshAxes,
    in_specs: tuple[PartitionSpec, ...],
    out_specs: PartitionSpec,
) -> Callable[..., Array]:
    """Map a function over these mesh axes with `shard_map`; XLA splits rows and batch."""
    return jax.shard_map(
        function,
        mesh=layout.mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(names),
        check_vma=False,
    )


def _convolved(conv: Conv, x: Array, kernel: Array) -> Array:
    strides = np.broadcast_to(np.asarray(conv.strides), 2).tolist()
    padding = np.broadcast_to(np.asarray(conv.padding), (2, 2)).tolist()
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=_NHWC)


def _bias(conv: Conv) -> Array:
    assert conv.bias is not None
    return conv.bias[...]
