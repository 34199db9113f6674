"""The training set as a denoiser sees it: scenes drawn and encoded once."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from models.demo.training.recipe import Subject

CHUNK = 32
SEED = 29


def training_set(
    path: Path, subject: Subject, vae: nnx.Module, count: int
) -> tuple[np.ndarray, list[str]]:
    """Latents [count, …], float16, kept in `path`, and their prompts."""
    rng = np.random.default_rng(SEED)
    scenes = subject.scenes(rng, count)
    prompts = [scene.prompt for scene in scenes]
    if path.exists():
        return load_file(path)["latents"], prompts
    encode = nnx.jit(subject.encode)
    latents = []
    for first in range(0, count, CHUNK):
        drawings = [subject.draw(scene, rng) for scene in scenes[first : first + CHUNK]]
        pixels = np.stack(drawings).astype(np.float32) / 127.5 - 1
        latents.append(np.asarray(encode(vae, jnp.asarray(pixels)), np.float16))
    save_file({"latents": np.concatenate(latents)}, path)
    return np.concatenate(latents), prompts
