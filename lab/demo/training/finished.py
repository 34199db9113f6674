"""Loads a finished checkpoint for further training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from lab.demo.training.recipe import Recipe
from models.weights.loader import load


def finished(recipe: Recipe, folder: Path) -> tuple[Any, Any]:
    """Return the denoiser and the autoencoder of a checkpoint folder, in float32."""
    model = nnx.eval_shape(lambda: recipe.untrained(0))
    vae = nnx.eval_shape(recipe.subject.untrained_autoencoder)
    for name, part in recipe.checkpoint(model, vae).parts.items():
        loaded = load(part.module, folder / name, part.renames, dtype=jnp.float32)
        nnx.update(part.module, nnx.state(loaded))
    return model, vae
