"""Fusion of adapters into weights while these are loaded.

Source: diffusers, src/diffusers/loaders/lora_base.py, fuse_lora: the sum is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.adapters.files.adapter import Adapter, AdapterError, Changes, LayerPosition, LowRank
from models.weights.loader import flat_parameters

Fuse = Callable[[str, jax.Array], jax.Array]
"""Function from the path and array of a parameter to the fused array."""

KERNEL, BIAS = ".kernel", ".bias"


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


def _by_module(changes: Changes) -> Mapping[str, list[tuple[LayerPosition, LowRank]]]:
    by_path: dict[str, list[tuple[LayerPosition, LowRank]]] = {}
    for place, change in changes.items():
        by_path.setdefault(place.path, []).append((place, change))
    return by_path


def _fused(
    changes: Mapping[str, list[tuple[LayerPosition, LowRank]]],
    scale: float,
    path: str,
    array: jax.Array,
) -> jax.Array:
    module, kind = path.rpartition(".")[0], path[path.rfind(".") :]
    for place, delta in _deltas(changes.get(module, []), kind):
        number = None if place.layer is None else np.int32(place.layer)
        array = _added(array, number, np.float32(scale), *delta)
    return array


def _deltas(
    changes: list[tuple[LayerPosition, LowRank]], kind: str
) -> Iterator[tuple[LayerPosition, tuple[np.ndarray, ...]]]:
    """Yield the low-rank factors for a layer's kernel, or the change of its bias."""
    for place, change in changes:
        if kind == KERNEL and change.rank:
            yield place, (change.down.float32(), change.up.float32() * np.float32(change.scale))
        if kind == BIAS and change.bias is not None:
            yield place, (change.bias.float32() * np.float32(change.bias_scale),)


@partial(jax.jit, donate_argnums=0)
def _added(
    array: jax.Array, number: Array | None, scale: Float[Array, ""], *factors: Array
) -> jax.Array:
    """Add the change to an array, or to one layer of a stack, in float32 and in place."""
    layer = array if number is None else jax.lax.dynamic_index_in_dim(array, number, keepdims=False)
    sum_ = (layer.astype(jnp.float32) + scale * _delta(layer.shape, *factors)).astype(array.dtype)
    if number is None:
        return sum_
    return jax.lax.dynamic_update_index_in_dim(array, sum_, number, 0)


def _delta(shape: tuple[int, ...], *factors: Array) -> Array:
    """Return a bias, or the product of down and up as a kernel [*window, in, out].

    Args:
        factors: bias; or down [rank, in, *window] and up [out, rank].
    """
    if len(factors) == 1:
        return factors[0]
    down, up = factors
    product = jnp.einsum("ri...,or->...io", down, up, precision=jax.lax.Precision.HIGHEST)
    return product.reshape(shape)
