"""Trains the demo's autoencoder: L1 on drawn scenes, from latents that are normed and noised.

The latents are held at mean 0 and deviation 1 by channel over each batch, as the transformer
wants them, and the decoder learns to read them through noise, as the transformer will leave it.
At the end the norm, measured over many scenes, moves into the encoder's quant_conv.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from models.demo.checkpoint import restore, save
from models.demo.configs import VAE
from models.demo.dataset import random_scene
from models.demo.scenes import draw
from models.demo.schedule import Clock, warmup_stable_decay
from models.vae.image import AutoencoderKL

BATCH = 8
PEAK_RATE = 2e-3
ROUGH_NOISE, FINE_NOISE = 0.5, 0.2
"""Most noise on the latents, as a deviation: much while they find their form, then less."""
ROUGH_SHARE = 0.6
"""Of the run, with much noise."""
PAIRS_SHARE = 0.4
WARMUP, DECAY = 0.03, 0.6
REPORT_STEPS, SAVE_S = 25, 60
STATISTICS_BATCHES = 64
LOG_VARIANCE = 2 * np.log(0.1)

FINISHED = "vae_finished.safetensors"

State = dict[str, Any]
_optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))


def start(seed: int) -> tuple[nnx.GraphDef, State]:
    """A fresh run: untrained weights, empty optimizer, no step taken."""
    graph, parameters = nnx.split(AutoencoderKL(VAE, rngs=nnx.Rngs(seed)))
    return graph, {
        "parameters": parameters,
        "optimizer": _optimizer.init(parameters),
        "step": jnp.int32(0),
        "spent_s": np.float64(0),
    }


def batch(step: int, size: int = BATCH) -> np.ndarray:
    """The pictures of one step, float32 in [-1, 1], [size, 96, 96, 3]."""
    rng = np.random.default_rng([17, step])
    pictures = [draw(random_scene(rng, PAIRS_SHARE), rng) for _ in range(size)]
    return np.stack(pictures).astype(np.float32) / 127.5 - 1


def loss(
    graph: nnx.GraphDef, parameters: Any, pixels: jax.Array, key: jax.Array, noise: jax.Array
) -> jax.Array:
    """Mean absolute and squared error of the picture seen through normed and noised latents."""
    model = nnx.merge(graph, parameters)
    mean, _ = jnp.split(model.encoder(pixels), 2, axis=-1)
    centred = mean - mean.mean((0, 1, 2))
    latents = centred / jnp.sqrt((centred**2).mean((0, 1, 2)) + 1e-6)
    level_key, noise_key = jax.random.split(key)
    level = noise * jax.random.uniform(level_key, (len(pixels), 1, 1, 1))
    noised = latents + level * jax.random.normal(noise_key, latents.shape)
    gap = jnp.abs(model.decoder(noised) - pixels)
    return (gap + gap**2).mean()


def train(run: Path, minutes: float, seed: int = 0) -> AutoencoderKL:
    """Train until the time is up, resuming what `run` holds; the normed model."""
    graph, state = start(seed)
    path = run / "vae.safetensors"
    if path.exists():
        state = restore(path, state)
    clock = Clock(60 * minutes, float(state.pop("spent_s")))
    advance = make_advance(graph, seed)
    saved = time.monotonic()
    while (progress := clock.progress()) < 1:
        step = int(state["step"])
        rate = PEAK_RATE * warmup_stable_decay(progress, warmup=WARMUP, decay=DECAY)
        noise = ROUGH_NOISE if progress < ROUGH_SHARE else FINE_NOISE
        state, error = advance(state, batch(step), rate, noise)
        if step % REPORT_STEPS == 0:
            print(f"vae step {step} {clock.elapsed_s:.0f} s error {error:.4f}", flush=True)
        if time.monotonic() - saved > SAVE_S:
            save(path, {**state, "spent_s": np.float64(clock.elapsed_s)})
            saved = time.monotonic()
    save(path, {**state, "spent_s": np.float64(clock.elapsed_s)})
    model = with_norm(nnx.merge(graph, state["parameters"]))
    save(run / FINISHED, nnx.state(model))
    return model


def make_advance(graph: nnx.GraphDef, seed: int) -> Callable[..., tuple[State, jax.Array]]:
    """The compiled step: (state, pixels, rate, noise) → (state, error)."""

    def advance(
        state: State, pixels: jax.Array, rate: jax.Array, noise: jax.Array
    ) -> tuple[State, jax.Array]:
        key = jax.random.fold_in(jax.random.key(seed), state["step"])
        error, gradient = jax.value_and_grad(
            lambda parameters: loss(graph, parameters, pixels, key, noise)
        )(state["parameters"])
        updates, optimizer = _optimizer.update(gradient, state["optimizer"])
        updates = jax.tree.map(lambda update: -rate * update, updates)
        parameters = optax.apply_updates(state["parameters"], updates)
        step = state["step"] + 1
        return {"parameters": parameters, "optimizer": optimizer, "step": step}, error

    return jax.jit(advance, donate_argnums=0)


def trained(run: Path) -> AutoencoderKL:
    """The finished autoencoder of a run."""
    graph, parameters = nnx.split(AutoencoderKL(VAE, rngs=nnx.Rngs(0)))
    return nnx.merge(graph, restore(run / FINISHED, parameters))


def with_norm(model: AutoencoderKL) -> AutoencoderKL:
    """The model with quant_conv set so that latents have mean 0 and deviation 1 by channel."""
    encode = nnx.jit(lambda model, pixels: jnp.split(model.encoder(pixels), 2, axis=-1)[0])
    raw = np.concatenate(
        [encode(model, batch(1_000_000 + index)) for index in range(STATISTICS_BATCHES)]
    )
    deviation, mean = raw.std((0, 1, 2)), raw.mean((0, 1, 2))
    channels = len(mean)
    kernel = np.zeros((1, 1, 2 * channels, 2 * channels), np.float32)
    kernel[0, 0, range(channels), range(channels)] = 1 / deviation
    bias = np.concatenate([-mean / deviation, np.full(channels, LOG_VARIANCE)])
    norm = {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias, jnp.float32)}
    nnx.update(model.quant_conv, norm)
    return model
