"""Fusion of adapters into weights while these are loaded.

Source: diffusers, src/diffusers/loaders/lora_base.py, fuse_lora: the sum is computed in float32;
PEFT, src/peft/tuners/lora/dora.py, for DoRA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.adapters.files.adapter import (
    Adapter,
    AdapterError,
    Changes,
    LayerChange,
    LayerPosition,
    LowRank,
)
from models.weights.loader import flat_parameters

Fuse = Callable[[str, jax.Array], jax.Array]
"""Function from the path and array of a parameter to the fused array."""

KERNEL, BIAS = ".kernel", ".bias"
SMALLEST = 1e-30
"""Smallest squared norm that is divided by; that of zeros stays zero."""


def fusing(adapter: Adapter, scale: float, pipeline: Any) -> Mapping[str, Fuse]:
    """Return the functions that fuse an adapter into each network, by network name.

    Args:
        pipeline: with `graphs` and `weights`, which may be abstract.

    Raises: AdapterError: the adapter has a bias for a layer without bias.
    """
    for network, changes in adapter.networks.items():
        module = nnx.merge(getattr(pipeline.graphs, network), getattr(pipeline.weights, network))
        paths = flat_parameters(module).keys()
        for place, change in changes.items():
            if change.bias is not None and f"{place.path}{BIAS}" not in paths:
                raise AdapterError(f"{place.path} has no bias to fuse one into; leave out fuse")
    return {
        network: partial(_fused, _by_module(changes), scale)
        for network, changes in adapter.networks.items()
    }


def _by_module(changes: Changes) -> Mapping[str, list[tuple[LayerPosition, LayerChange]]]:
    by_path: dict[str, list[tuple[LayerPosition, LayerChange]]] = {}
    for place, change in changes.items():
        by_path.setdefault(place.path, []).append((place, change))
    return by_path


def _fused(
    changes: Mapping[str, list[tuple[LayerPosition, LayerChange]]],
    scale: float,
    path: str,
    array: jax.Array,
) -> jax.Array:
    module, kind = path.rpartition(".")[0], path[path.rfind(".") :]
    for place, change in changes.get(module, []):
        number = None if place.layer is None else np.int32(place.layer)
        magnitudes, of_inputs = None, False
        if kind == KERNEL and change.magnitude is not None:
            magnitudes, of_inputs = change.magnitude.values, change.magnitude.of_inputs
        if factors := _factors(change, kind):
            array = _added(
                array, number, np.float32(scale), magnitudes, *factors, of_inputs=of_inputs
            )
    return array


def _factors(change: LayerChange, kind: str) -> tuple[np.ndarray, ...]:
    """Return the arrays that define an adapter's change of one kernel or bias.

    These are the low-rank factors `down` and `up`, or one whole array.
    """
    if kind == BIAS and change.bias is not None:
        return (change.bias.float32() * np.float32(change.bias_scale),)
    if kind != KERNEL or not change.rank:
        return ()
    if isinstance(change, LowRank):
        return change.down.float32(), change.up.float32() * np.float32(change.scale)
    return (change.kernel() * np.float32(change.scale),)


@partial(jax.jit, donate_argnums=0, static_argnames="of_inputs")
def _added(
    array: jax.Array,
    number: Array | None,
    scale: Float[Array, ""],
    magnitudes: Float[Array, " _side"] | None,
    *factors: Array,
    of_inputs: bool,
) -> jax.Array:
    """Add an adapter's change to an array, or to one layer of a stack, in float32 and in place.

    Args:
        magnitudes: of the sum's vectors, for each input or output (DoRA); None: any.
    """
    layer = array if number is None else jax.lax.dynamic_index_in_dim(array, number, keepdims=False)
    total = layer.astype(jnp.float32) + scale * _delta(layer.shape, *factors)
    if magnitudes is not None:
        total = _with_magnitudes(total, magnitudes, of_inputs)
    total = total.astype(array.dtype)
    if number is None:
        return total
    updated: jax.Array = jax.lax.dynamic_update_index_in_dim(array, total, number, 0)
    return updated


def _with_magnitudes(
    kernel: Float[Array, "*window in out"], magnitudes: Float[Array, " _side"], of_inputs: bool
) -> Float[Array, "*window in out"]:
    """Scale the vectors of a kernel's inputs or outputs to these DoRA magnitudes."""
    axis = kernel.ndim - (2 if of_inputs else 1)
    others = tuple(other for other in range(kernel.ndim) if other != axis)
    squares = jnp.square(kernel).sum(others, keepdims=True)
    shape = [-1 if other == axis else 1 for other in range(kernel.ndim)]
    return kernel * (magnitudes.reshape(shape) * jax.lax.rsqrt(jnp.maximum(squares, SMALLEST)))


def _delta(shape: tuple[int, ...], *factors: Array) -> Array:
    """Return the change that the factors define: a kernel [*window, in, out], or a bias.

    Args:
        factors: a bias or kernel; or down [rank, in, *window] and up [out, rank].
    """
    if len(factors) == 1:
        return factors[0].reshape(shape)
    down, up = factors
    product = jnp.einsum("ri...,or->...io", down, up, precision=jax.lax.Precision.HIGHEST)
    return product.reshape(shape)
