"""Trains an adapter of a finished model: low-rank changes of its blocks' kernels, all else frozen.

Source: Hu et al. 2021 (LoRA).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from models.checkpoint.key_mapping import Renames, source
from models.demo.training import beside
from models.demo.training.beside import Data, Sitting
from models.demo.training.recipe import Recipe
from models.weights.loader import Module, filled, flat_parameters

ADAPTED = re.compile(r"(transformer|unet)\.(\w*blocks\..+\.kernel)")
"""Paths of kernels that change: the network, and the path in it."""
RATE = 3e-3
STORED = np.float16

Changes = dict[str, dict[str, jax.Array]]
"""Changes by a kernel's path: `down` [layers, in, rank] and `up` [layers, rank, out]."""


def untrained(model: nnx.Module, rank: int, seed: int) -> Changes:
    """Return changes that change nothing yet."""
    rng = np.random.default_rng(seed)
    changes = {}
    for path, leaf in flat_parameters(model).items():
        if ADAPTED.fullmatch(path):
            layers, inputs, outputs = leaf.shape
            down = rng.standard_normal((layers, inputs, rank)) / np.sqrt(inputs)
            changes[path] = {
                "down": jnp.asarray(down, jnp.float32),
                "up": jnp.zeros((layers, rank, outputs)),
            }
    return changes


def changed(model: Module, changes: Changes) -> Module:
    """Return the model with the changes added to its kernels."""
    arrays = {path: leaf[...] for path, leaf in flat_parameters(model).items()}
    for path, low_rank in changes.items():
        arrays[path] += low_rank["down"] @ low_rank["up"]
    return filled(model, arrays)


def train(
    recipe: Recipe,
    model: Any,
    data: Data,
    rank: int,
    steps: int,
    seed: int = 0,
    state: Path | None = None,
) -> Changes:
    """Train an adapter of this rank for so many steps; `state` is as in `beside.train`."""
    graph, frozen = nnx.split(model)

    def loss(changes: Changes, frozen: Any, latents: Any, text: Any, key: jax.Array) -> jax.Array:
        error: jax.Array = changed(nnx.merge(graph, frozen), changes).loss(latents, text, key)
        return error

    sitting = Sitting(steps, recipe.batch, RATE)
    first = untrained(model, rank, seed)
    changes: Changes = beside.train(loss, first, frozen, data, sitting, state, seed)
    return changes


def write(changes: Changes, renames: Renames, path: Path) -> None:
    """Write an adapter by the names of diffusers and PEFT; alpha is the rank, so none is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors(changes, renames), path, metadata={"format": "pt"})


def tensors(changes: Changes, renames: Renames) -> dict[str, np.ndarray]:
    """Return every matrix under its key, laid out as torch lays it out."""
    stored = {}
    for path, low_rank in changes.items():
        network, leaf = ADAPTED.fullmatch(path).groups()  # type: ignore[union-attr]
        for layer in range(len(low_rank["down"])):
            key = source(leaf, layer, renames)
            if key is None:
                raise ValueError(f"{leaf}[{layer}] has no name in the checkpoint")
            name = f"{network}.{key.removesuffix('.weight')}"
            for letter, kind in (("A", "down"), ("B", "up")):
                matrix = np.asarray(low_rank[kind][layer], STORED).T
                stored[f"{name}.lora_{letter}.weight"] = np.ascontiguousarray(matrix)
    return stored
