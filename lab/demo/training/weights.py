"""Initialization of networks that are trained from scratch."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx

Path = tuple[str, ...]


def scaled(model: nnx.Module, factor: float, chosen: Callable[[Path], bool]) -> None:
    """Multiply the parameters selected by `chosen` by a factor."""
    for path, leaf in _parameters(model):
        if chosen(path):
            leaf[...] = factor * leaf[...]


def zeroed(model: nnx.Module, chosen: Callable[[Path], bool]) -> None:
    """Set the parameters selected by `chosen` to zero, so that a branch initially adds nothing."""
    scaled(model, 0.0, chosen)


def embeddings_as_large(model: nnx.Module, deviation: float) -> None:
    """Scale token and position embeddings to this deviation; the default is far smaller."""
    for path, leaf in _parameters(model):
        if path[-2] in ("token_embedding", "position_embedding"):
            leaf[...] = deviation * leaf[...] / jnp.std(leaf[...])


def _parameters(model: nnx.Module) -> list[tuple[Path, nnx.Variable]]:
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return [(tuple(map(str, path)), leaf) for path, leaf in flat]
