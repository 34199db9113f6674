"""Trains an autoencoder on drawings, with normalized and noised latents.

Latents have mean 0 and standard deviation 1 by channel over each batch, as the denoising network
needs. The decoder is trained on noised latents, to tolerate that network's errors. After training,
the normalization is measured over many drawings and stored in the checkpoint.
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

from lab.demo.training.checkpoint import restore, save
from lab.demo.training.schedule import Clock, warmup_stable_decay

WARMUP, DECAY = 0.03, 0.6
REPORT_STEPS, SAVE_S = 25, 60
STATE = "vae.safetensors"
"""State file in the run's folder, from which training resumes."""
FIRST_UNSEEN_STEP = 1_000_000
"""First batch number reserved for measurement; training does not reach it."""

State = dict[str, Any]
_optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))


class Autoencoder(Protocol):
    """Recipe of an autoencoder for images or videos."""

    peak_rate: float

    def untrained(self, seed: int) -> nnx.Module:
        """Return the autoencoder with random weights."""

    def batch(self, step: int, progress: float) -> np.ndarray:
        """Return the drawings of one step, float32 in [-1, 1]."""
        ...

    def noise(self, progress: float) -> float:
        """Return the maximum noise on the normalized latents, as a standard deviation."""
        ...

    def moments(self, model: Any, pixels: jax.Array) -> jax.Array:
        """Return the latents' mean, before normalization."""
        ...

    def pixels(self, model: Any, normed: Normed) -> jax.Array:
        """Decode normalized latents to pixels."""

    def weights(self, pixels: jax.Array) -> jax.Array:
        """Return the loss weight of each pixel, with a colour axis of one."""
        ...

    def finish(self, model: Any, run: Path) -> None:
        """Measure the normalization, store it in the model, and save the model in `run`."""
        ...


class Normed:
    """Latents normalized by channel over a batch, and the statistics to undo it.

    Source: Ioffe and Szegedy 2015, algorithm 1, without scale and shift.
    """

    def __init__(self, raw: jax.Array) -> None:
        axes = tuple(range(raw.ndim - 1))
        self.mean = raw.mean(axes)
        self.deviation = jnp.sqrt(jnp.square(raw - self.mean).mean(axes) + 1e-6)
        self.latents = (raw - self.mean) / self.deviation

    def add_noise(self, key: jax.Array, most: jax.Array) -> None:
        """Add noise of random standard deviation up to `most`, different in each row."""
        level_key, noise_key = jax.random.split(key)
        rows = (len(self.latents), *(1,) * (self.latents.ndim - 1))
        level = most * jax.random.uniform(level_key, rows)
        self.latents += level * jax.random.normal(noise_key, self.latents.shape)

    @property
    def raw(self) -> jax.Array:
        """Latents in the encoder's scale, before normalization."""
        return self.latents * self.deviation + self.mean


def start(recipe: Autoencoder, seed: int) -> tuple[nnx.GraphDef, State]:
    """Return the state of a new run: initial weights, and the optimizer's state."""
    graph, parameters = nnx.split(recipe.untrained(seed))
    return graph, {
        "parameters": parameters,
        "optimizer": _optimizer.init(parameters),
        "step": jnp.int32(0),
        "spent_s": np.float64(0),
    }


def train(recipe: Autoencoder, run: Path, minutes: float, seed: int = 0) -> None:
    """Train an autoencoder until the time budget is spent, resuming from `run`."""
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
    """Return the compiled training step: (state, pixels, rate, noise) → (state, error)."""

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
    """Return the mean absolute plus squared error of drawings decoded from noised latents."""
    normed = Normed(recipe.moments(model, pixels))
    normed.add_noise(key, noise)
    difference = jnp.abs(recipe.pixels(model, normed) - pixels)
    weights = recipe.weights(pixels)
    return (weights * (difference + difference**2)).mean() / weights.mean()


def statistics(
    recipe: Autoencoder, model: nnx.Module, batches: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation by channel of latents of unseen drawings."""
    measure = nnx.jit(recipe.moments)
    raw = np.concatenate(
        [
            measure(model, jnp.asarray(recipe.batch(FIRST_UNSEEN_STEP + index, 1.0)))
            for index in range(batches)
        ]
    )
    axes = tuple(range(raw.ndim - 1))
    return raw.mean(axes), raw.std(axes)
