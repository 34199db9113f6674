"""Trains an autoencoder: L1 on drawings, from latents that are normed and noised.

The latents are held at mean 0 and deviation 1 by channel over each batch, as the denoising network
wants them, and the decoder learns to read them through noise, as that network will leave it. At
the end the norm, measured over many drawings, is made part of the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from models.demo.training.checkpoint import restore, save
from models.demo.training.schedule import Clock, warmup_stable_decay

WARMUP, DECAY = 0.03, 0.6
REPORT_STEPS, SAVE_S = 25, 60
STATE = "vae.safetensors"
"""State file in the run's folder, from which a stopped training resumes."""
FIRST_UNSEEN_STEP = 1_000_000
"""Batches from here on are for measuring: training never comes so far."""

State = dict[str, Any]
_optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))


class Autoencoder(Protocol):
    """A network for pictures or clips, and what it is shown."""

    peak_rate: float

    def untrained(self, seed: int) -> nnx.Module:
        """Return an autoencoder with random weights."""

    def batch(self, step: int, progress: float) -> np.ndarray:
        """The drawings of one step, float32 in [-1, 1]."""
        ...

    def noise(self, progress: float) -> float:
        """Return the largest noise on the normed latents, as a deviation."""
        ...

    def moments(self, model: Any, pixels: jax.Array) -> jax.Array:
        """The latents' mean, before any norm."""
        ...

    def pixels(self, model: Any, normed: Normed) -> jax.Array:
        """Return decoded pixels."""

    def weights(self, pixels: jax.Array) -> jax.Array:
        """Return how much each pixel counts, with an axis of one for its colours."""
        ...

    def finish(self, model: Any, run: Path) -> None:
        """Measure the norm, make it part of the model and keep that in the run's folder."""
        ...


class Normed:
    """Latents at mean 0 and deviation 1 by channel over a batch, and what they were before.

    Source: Ioffe and Szegedy 2015, algorithm 1, without scale and shift.
    """

    def __init__(self, raw: jax.Array) -> None:
        axes = tuple(range(raw.ndim - 1))
        self.mean = raw.mean(axes)
        self.deviation = jnp.sqrt(jnp.square(raw - self.mean).mean(axes) + 1e-6)
        self.latents = (raw - self.mean) / self.deviation

    def add_noise(self, key: jax.Array, most: jax.Array) -> None:
        """Add noise up to a deviation of `most`, another in each row."""
        level_key, noise_key = jax.random.split(key)
        rows = (len(self.latents), *(1,) * (self.latents.ndim - 1))
        level = most * jax.random.uniform(level_key, rows)
        self.latents += level * jax.random.normal(noise_key, self.latents.shape)

    @property
    def raw(self) -> jax.Array:
        """Return the latents in the encoder's own scale."""
        return self.latents * self.deviation + self.mean


def start(recipe: Autoencoder, seed: int) -> tuple[nnx.GraphDef, State]:
    """A fresh run: untrained weights, empty optimizer, no step taken."""
    graph, parameters = nnx.split(recipe.untrained(seed))
    return graph, {
        "parameters": parameters,
        "optimizer": _optimizer.init(parameters),
        "step": jnp.int32(0),
        "spent_s": np.float64(0),
    }


def train(recipe: Autoencoder, run: Path, minutes: float, seed: int = 0) -> None:
    """Train until the time is up, resuming what `run` holds."""
    graph, state = start(recipe, seed)
    path = run / STATE
    if path.exists():
        state = restore(path, state)
    clock = Clock(60 * minutes, float(state.pop("spent_s")))
    advance = make_advance(recipe, graph, seed)
    saved = time.monotonic()
    while (progress := clock.progress()) < 1:
        step = int(state["step"])
        rate = recipe.peak_rate * warmup_stable_decay(progress, warmup=WARMUP, decay=DECAY)
        drawings = recipe.batch(step, progress)
        state, error = advance(state, drawings, rate, recipe.noise(progress))
        if step % REPORT_STEPS == 0:
            print(f"vae step {step} {clock.elapsed_s:.0f} s error {error:.4f}", flush=True)
        if time.monotonic() - saved > SAVE_S:
            save(path, {**state, "spent_s": np.float64(clock.elapsed_s)})
            saved = time.monotonic()
    save(path, {**state, "spent_s": np.float64(clock.elapsed_s)})
    recipe.finish(nnx.merge(graph, state["parameters"]), run)


def make_advance(
    recipe: Autoencoder, graph: nnx.GraphDef, seed: int
) -> Callable[..., tuple[State, jax.Array]]:
    """The compiled step: (state, pixels, rate, noise) → (state, error)."""

    def advance(
        state: State, pixels: jax.Array, rate: jax.Array, noise: jax.Array
    ) -> tuple[State, jax.Array]:
        key = jax.random.fold_in(jax.random.key(seed), state["step"])
        error, gradient = jax.value_and_grad(
            lambda parameters: loss(recipe, nnx.merge(graph, parameters), pixels, key, noise)
        )(state["parameters"])
        updates, optimizer = _optimizer.update(gradient, state["optimizer"])
        updates = jax.tree.map(lambda update: -rate * update, updates)
        parameters = optax.apply_updates(state["parameters"], updates)
        step = state["step"] + 1
        return {"parameters": parameters, "optimizer": optimizer, "step": step}, error

    return jax.jit(advance, donate_argnums=0)


def loss(
    recipe: Autoencoder, model: nnx.Module, pixels: jax.Array, key: jax.Array, noise: jax.Array
) -> jax.Array:
    """Mean absolute and squared error of the drawing seen through normed and noised latents."""
    normed = Normed(recipe.moments(model, pixels))
    normed.add_noise(key, noise)
    gap = jnp.abs(recipe.pixels(model, normed) - pixels)
    weights = recipe.weights(pixels)
    return (weights * (gap + gap**2)).mean() / weights.mean()


def statistics(
    recipe: Autoencoder, model: nnx.Module, batches: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation by channel of the latents of drawings that training has not seen."""
    measure = nnx.jit(recipe.moments)
    raw = np.concatenate(
        [
            measure(model, jnp.asarray(recipe.batch(FIRST_UNSEEN_STEP + index, 1.0)))
            for index in range(batches)
        ]
    )
    axes = tuple(range(raw.ndim - 1))
    return raw.mean(axes), raw.std(axes)
