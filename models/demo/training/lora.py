"""Trains an adapter of a finished model: low-rank changes of its blocks' kernels, all else frozen.

Source: Hu et al. 2021 (LoRA).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from safetensors.numpy import save_file

from models.checkpoint.key_mapping import Renames, source
from models.demo.training.prompts import Prompts
from models.demo.training.recipe import Recipe
from models.demo.training.train import UNPROMPTED_SHARE
from models.parallel.trace_options import TraceOptions
from models.weights.loader import Module, filled, flat_parameters

ADAPTED = re.compile(r"(transformer|unet)\.(\w*blocks\..+\.kernel)")
"""Paths of kernels that change: the network, and the path in it."""
RATE = 3e-3
STORED = np.float16
REPORT_STEPS = 50

Changes = dict[str, dict[str, jax.Array]]
"""Changes by a kernel's path: `down` [layers, in, rank] and `up` [layers, rank, out]."""
Data = Mapping[str, Any]
"""`latents` [count, …], and the `text` of their prompts and, last, of the empty one."""


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


def training_data(model: Any, prompts: Prompts, latents: np.ndarray, said: list[str]) -> Data:
    """Return drawings' latents with their prompts as the frozen encoders read them."""
    text = nnx.jit(lambda model, tokens: model.read(tokens))(model, prompts([*said, ""]))
    return {"latents": jnp.asarray(latents, jnp.float32), "text": text}


def train(recipe: Recipe, model: Any, data: Data, rank: int, steps: int, seed: int = 0) -> Changes:
    """Train an adapter of this rank for so many steps."""
    graph, frozen = nnx.split(model)
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    changes = untrained(model, rank, seed)
    memory = optimizer.init(changes)
    advance = _make_advance(graph, optimizer, recipe.batch)
    errors = []
    for step in range(steps):
        key = jax.random.fold_in(jax.random.key(seed), step)
        changes, memory, error = advance(changes, memory, frozen, data, key)
        errors.append(error)
        if len(errors) == REPORT_STEPS:
            print(f"step {step + 1} loss {np.mean(jax.device_get(errors)):.4f}", flush=True)
            errors = []
    return changes


def _make_advance(
    graph: nnx.GraphDef, optimizer: optax.GradientTransformation, batch: int
) -> Callable[..., Any]:
    """The compiled step: (changes, memory, frozen, data, key) → (changes, memory, loss)."""

    def advance(
        changes: Changes, memory: Any, frozen: Any, data: Data, key: jax.Array
    ) -> tuple[Changes, Any, jax.Array]:
        pick, forget, key = jax.random.split(key, 3)
        count = len(data["latents"])
        rows = jax.random.randint(pick, (batch,), 0, count)
        said = jnp.where(jax.random.bernoulli(forget, UNPROMPTED_SHARE, (batch,)), count, rows)
        text = jax.tree.map(lambda leaf: leaf[said], data["text"])

        def error(changes: Changes) -> jax.Array:
            model = changed(nnx.merge(graph, frozen), changes)
            loss: jax.Array = model.loss(data["latents"][rows], text, key)
            return loss

        with TraceOptions(unroll=True).active():
            loss, gradient = jax.value_and_grad(error)(changes)
        updates, memory = optimizer.update(gradient, memory)
        return optax.apply_updates(changes, updates), memory, loss

    return jax.jit(advance, donate_argnums=(0, 1))


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
