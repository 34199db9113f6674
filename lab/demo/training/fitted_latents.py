"""Training set of an adapter, with latents fitted to drawings that the autoencoder has not seen.

The encoder maps new drawings to familiar ones. The decoder reproduces them well from fitted
latents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from lab.demo.training.latents import SEED
from lab.demo.training.recipe import Subject

CHUNK = 32
STEPS = 18
RATE = 0.1
TETHER = 1.0
"""Weight of the distance from the encoder's latents; without it, latents of plain
background drift."""


def fitted_set(subject: Subject, vae: Any) -> tuple[np.ndarray, list[str]]:
    """Return the latents [count, …] of a subject's drawings, and their prompts."""
    rng = np.random.default_rng(SEED)
    scenes = subject.scenes(rng, subject.count)
    fit = make_fit(vae)
    latents = []
    for first in range(0, len(scenes), CHUNK):
        drawings = [subject.draw(scene, rng) for scene in scenes[first : first + CHUNK]]
        latents.append(fit(np.stack(drawings).astype(np.float32) / 127.5 - 1))
    return np.concatenate(latents), [scene.prompt for scene in scenes]


def make_fit(vae: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from pixels in [-1, 1] to latents that the decoder maps to them.

    The function minimizes the decoder's squared error, starting at the encoder's latents and
    penalizing distance from them.
    """
    optimizer = optax.adam(RATE)
    encode = nnx.jit(lambda vae, pixels: vae.encode(pixels)[0])

    @nnx.jit
    def step(vae: Any, latents: Any, memory: Any, first: Any, pixels: Any) -> tuple[Any, Any]:
        def error(latents: Any) -> jax.Array:
            pixel_error, shift = vae.decode(latents) - pixels, latents - first
            return jnp.square(pixel_error).sum() + TETHER * jnp.square(shift).sum()

        updates, memory = optimizer.update(jax.grad(error)(latents), memory)
        return latents + updates, memory

    def fit(pixels: np.ndarray) -> np.ndarray:
        first = latents = encode(vae, pixels)
        memory = optimizer.init(latents)
        for _ in range(STEPS):
            latents, memory = step(vae, latents, memory, first, pixels)
        return np.asarray(latents)

    return fit
