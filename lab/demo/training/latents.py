"""Training set of a denoiser: scenes drawn and encoded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from lab.demo.training.recipe import Subject

CHUNK = 32
SEED = 29


def training_set(
    path: Path, subject: Subject, vae: nnx.Module, count: int
) -> tuple[np.ndarray, list[str]]:
    """Return latents [count, …], float16, cached in `path`, and their prompts."""
    rng = np.random.default_rng(SEED)
    scenes = subject.scenes(rng, count)
    prompts = [scene.prompt for scene in scenes]
    if path.exists():
        return load_file(path)["latents"], prompts
    chunks = (
        np.stack([subject.draw(scene, rng) for scene in scenes[first : first + CHUNK]])
        for first in range(0, count, CHUNK)
    )
    latents = encoded(subject, vae, chunks).astype(np.float16)
    save_file({"latents": latents}, path)
    return latents, prompts


def encoded(subject: Subject, vae: nnx.Module, chunks: Iterable[np.ndarray]) -> np.ndarray:
    """Encode uint8 drawings to latents [count, …]."""
    encode = nnx.jit(subject.encode)
    pixels = (jnp.asarray(chunk.astype(np.float32) / 127.5 - 1) for chunk in chunks)
    return np.concatenate([np.asarray(encode(vae, chunk)) for chunk in pixels])


def in_chunks(drawings: np.ndarray) -> Iterator[np.ndarray]:
    """Yield drawings in chunks of the encoder's batch size."""
    yield from (drawings[first : first + CHUNK] for first in range(0, len(drawings), CHUNK))
