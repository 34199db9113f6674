"""Parameters that are stored in one dtype and used in another: memory apart from precision."""

from __future__ import annotations

from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

Module = TypeVar("Module", bound=nnx.Module)

USED_AS = "used_as"
"""Metadata of a parameter: the dtype that it is cast to whenever it is used."""


def used_as(module: Module, example: nnx.Module) -> Module:
    """The module, each parameter of which is used in the dtype that it has in another one.

    Args:
        example: the same network, perhaps abstract, made for the dtype of the activations.
    """
    graph, state = nnx.split(module)
    wanted = {path: leaf.dtype for path, leaf in nnx.to_flat_state(nnx.state(example))}
    flat = [(path, _marked(leaf, wanted[path])) for path, leaf in nnx.to_flat_state(state)]
    return nnx.merge(graph, nnx.from_flat_state(flat))  # type: ignore[no-any-return]


def _marked(leaf: nnx.Variable, dtype: np.dtype) -> nnx.Variable:
    if leaf.dtype == dtype:
        return leaf
    return leaf.replace(leaf.get_value(), **{USED_AS: jnp.dtype(dtype).name})


def used_dtype(leaf: nnx.Variable) -> np.dtype:
    """Return the dtype of the activations that a parameter meets."""
    return jnp.dtype(leaf.get_metadata().get(USED_AS, leaf.dtype))
