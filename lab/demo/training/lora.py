"""Trains a LoRA of a finished, frozen model, on the kernels of its blocks.

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

from lab.demo.training import frozen_base
from lab.demo.training.frozen_base import Data, TrainingRun
from lab.demo.training.recipe import Recipe
from models.checkpoint.key_mapping import Renames, source
from models.weights.loader import Module, filled, flat_parameters

ADAPTED = re.compile(r"(transformer|unet)\.(\w*blocks\..+\.kernel)")
"""Paths of adapted kernels: the network, and the path in it."""
RATE = 3e-3
STORED = np.float16

Changes = dict[str, dict[str, jax.Array]]
"""Low-rank factors by kernel path: `down` [layers, in, rank] and `up` [layers, rank, out]."""


def untrained(model: nnx.Module, rank: int, seed: int) -> Changes:
    """Return initial low-rank factors, whose products are zero."""
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
    """Return the model with the low-rank products added to its kernels."""
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
    """Train an adapter of this rank for `steps` steps; `state` is as in `frozen_base.train`."""
    graph, frozen = nnx.split(model)

    def loss(changes: Changes, frozen: Any, latents: Any, text: Any, key: jax.Array) -> jax.Array:
        error: jax.Array = changed(nnx.merge(graph, frozen), changes).loss(latents, text, key)
        return error

    training_run = TrainingRun(steps, recipe.batch, RATE)
    first = untrained(model, rank, seed)
    changes: Changes = frozen_base.train(loss, first, frozen, data, training_run, state, seed)
    return changes


def write(changes: Changes, renames: Renames, path: Path) -> None:
    """Write an adapter with diffusers' and PEFT's names; omits alpha, which equals the rank."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors(changes, renames), path, metadata={"format": "pt"})


def tensors(changes: Changes, renames: Renames) -> dict[str, np.ndarray]:
    """Return every matrix by its key, in torch's memory layout."""
    stored = {}
    for path, low_rank in changes.items():
        network, leaf = ADAPTED.fullmatch(path).groups()
        for layer in range(len(low_rank["down"])):
            key = source(leaf, layer, renames)
            if key is None:
                raise ValueError(f"{leaf}[{layer}] has no name in the checkpoint")
            name = f"{network}.{key.removesuffix('.weight')}"
            for letter, kind in (("A", "down"), ("B", "up")):
                matrix = np.asarray(low_rank[kind][layer], STORED).T
                stored[f"{name}.lora_{letter}.weight"] = np.ascontiguousarray(matrix)
    return stored
