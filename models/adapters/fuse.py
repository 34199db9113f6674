"""Adapters merged into weights as these are loaded.

Source: diffusers, src/diffusers/loaders/lora_base.py, fuse_lora: the sum is made in float32.
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

from models.adapters.files.adapter import Adapter, AdapterError, Changes, LowRank, Place
from models.weights.loader import flat_parameters

Fuse = Callable[[str, jax.Array], jax.Array]
"""Change one array of a network, given its path."""

KERNEL, BIAS = ".kernel", ".bias"


def fusing(adapter: Adapter, scale: float, pipeline: Any) -> Mapping[str, Fuse]:
    """Return what merges an adapter into each of its networks, by their names.

    Args:
        pipeline: with `graphs` and `weights`, which may be abstract.

    Raises: AdapterError: a layer has no bias to add its bias to.
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


def _by_module(changes: Changes) -> Mapping[str, list[tuple[Place, LowRank]]]:
    found: dict[str, list[tuple[Place, LowRank]]] = {}
    for place, change in changes.items():
        found.setdefault(place.path, []).append((place, change))
    return found


def _fused(
    changes: Mapping[str, list[tuple[Place, LowRank]]], scale: float, path: str, array: jax.Array
) -> jax.Array:
    module, kind = path.rpartition(".")[0], path[path.rfind(".") :]
    for place, delta in _deltas(changes.get(module, []), kind):
        number = None if place.layer is None else np.int32(place.layer)
        array = _added(array, number, np.float32(scale), *delta)
    return array


def _deltas(
    changes: list[tuple[Place, LowRank]], kind: str
) -> Iterator[tuple[Place, tuple[np.ndarray, ...]]]:
    """Yield the factors of what is added to a layer's kernel, or what is added to its bias."""
    for place, change in changes:
        if kind == KERNEL and change.rank:
            yield place, (change.down.float32(), change.up.float32() * np.float32(change.scale))
        if kind == BIAS and change.bias is not None:
            yield place, (change.bias.float32() * np.float32(change.bias_scale),)


@partial(jax.jit, donate_argnums=0)
def _added(
    array: jax.Array, number: Array | None, scale: Float[Array, ""], *factors: Array
) -> jax.Array:
    """Add to an array, or to one layer of a stack, in float32; where it lies."""
    own = array if number is None else jax.lax.dynamic_index_in_dim(array, number, keepdims=False)
    sum_ = (own.astype(jnp.float32) + scale * _delta(own.shape, *factors)).astype(array.dtype)
    if number is None:
        return sum_
    return jax.lax.dynamic_update_index_in_dim(array, sum_, number, 0)


def _delta(shape: tuple[int, ...], *factors: Array) -> Array:
    """Return a bias as it is; of a kernel [*window, in, out] the product of down and up.

    Args:
        factors: bias; or down [rank, in, *window] and up [out, rank].
    """
    if len(factors) == 1:
        return factors[0]
    down, up = factors
    product = jnp.einsum("ri...,or->...io", down, up, precision=jax.lax.Precision.HIGHEST)
    return product.reshape(shape)
