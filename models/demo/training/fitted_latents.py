"""The training set of an adapter: drawings such as the autoencoder never saw.

Its encoder takes them for what it knows, but its decoder draws them well from latents that are
fitted to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from models.demo.training.latents import SEED
from models.demo.training.recipe import Subject

CHUNK = 32
STEPS = 18
RATE = 0.1
TETHER = 1.0
"""Weight of the distance from the encoder's latents: without it those of plain ground wander, and
there is nothing to learn from that."""


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
    """Return a function from pixels in [-1, 1] to the latents that the decoder draws them from.

    It descends on the decoder's squared error, from the latents of the encoder, and not far.
    """
    optimizer = optax.adam(RATE)
    encode = nnx.jit(lambda vae, pixels: vae.encode(pixels)[0])

    @nnx.jit
    def step(vae: Any, latents: Any, memory: Any, first: Any, pixels: Any) -> tuple[Any, Any]:
        def error(latents: Any) -> jax.Array:
            drawn, moved = vae.decode(latents) - pixels, latents - first
            return jnp.square(drawn).sum() + TETHER * jnp.square(moved).sum()

        updates, memory = optimizer.update(jax.grad(error)(latents), memory)
        return latents + updates, memory

    def fit(pixels: np.ndarray) -> np.ndarray:
        first = latents = encode(vae, pixels)
        memory = optimizer.init(latents)
        for _ in range(STEPS):
            latents, memory = step(vae, latents, memory, first, pixels)
        return np.asarray(latents)

    return fit
