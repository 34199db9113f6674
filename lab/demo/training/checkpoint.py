"""Saves a run's state in one safetensors file, replaced atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

PyTree = Any


def save(path: Path, state: PyTree) -> None:
    """Write every leaf of `state` under its path in the tree."""
    leaves = {key: np.array(jax.device_get(leaf), order="C") for key, leaf in _named(state)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(leaves, partial)
    partial.replace(path)


def restore(path: Path, like: PyTree) -> PyTree:
    """Load the saved state, in the structure of `like`.

    Raises:
        ValueError: the file has another structure, so another recipe wrote it.
    """
    saved = load_file(path)
    shapes = {key: leaf.shape for key, leaf in _named(like)}
    if {key: array.shape for key, array in saved.items()} != shapes:
        raise ValueError(f"{path} was written by another recipe; remove it to start afresh")
    leaves = [saved[key] for key, _ in _named(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _named(state: PyTree) -> list[tuple[str, jax.Array]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in flat]
