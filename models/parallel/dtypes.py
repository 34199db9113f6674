"""Parameters that are stored in one dtype and used in another: memory independent of precision."""

from __future__ import annotations

from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

Module = TypeVar("Module", bound=nnx.Module)

USED_AS = "used_as"
"""Metadata of a parameter: dtype to which each use casts it."""


def used_as(module: Module, example: nnx.Module) -> Module:
    """Mark each parameter with the dtype of the same parameter in another module.

    Args:
        example: the same network, which may be abstract, in the activations' dtype.
    """
    graph, state = nnx.split(module)
    dtypes = {path: leaf.dtype for path, leaf in nnx.to_flat_state(nnx.state(example))}
    flat = [(path, _marked(leaf, dtypes[path])) for path, leaf in nnx.to_flat_state(state)]
    marked: Module = nnx.merge(graph, nnx.from_flat_state(flat))
    return marked


def _marked(leaf: nnx.Variable[Any], dtype: np.dtype) -> nnx.Variable[Any]:
    if leaf.dtype == dtype:
        return leaf
    return leaf.replace(leaf.get_value(), **{USED_AS: jnp.dtype(dtype).name})


def used_dtype(leaf: nnx.Variable[Any]) -> np.dtype:
    """Return the dtype in which a parameter is used."""
    dtype: np.dtype = jnp.dtype(leaf.get_metadata().get(USED_AS, leaf.dtype))
    return dtype
