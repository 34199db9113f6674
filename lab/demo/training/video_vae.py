"""Video autoencoder of the demo: 8 x 8 pixels and 2 frames per latent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lab.demo.training.checkpoint import restore, save
from lab.demo.training.train_vae import Normed, statistics
from lab.demo.world.motion import FRAMES, draw, training_motions
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig

CHANNELS = 8
CONFIG = VideoVaeConfig(
    base_dim=16,
    decoder_base_dim=20,
    z_dim=CHANNELS,
    dim_mult=(2, 2),
    num_res_blocks=1,
    temperal_downsample=(True,),
    latents_mean=(0.0,) * CHANNELS,
    latents_std=(1.0,) * CHANNELS,
    is_residual=True,
    patch_size=4,
    in_channels=48,
    out_channels=48,
    scale_factor_temporal=2,
    scale_factor_spatial=8,
)
SHORT_FRAMES, SHORT_BATCH, LONG_BATCH = 9, 8, 4
"""Frames and batch sizes. Short videos first, since frames of one video are similar."""
SHORT_SHARE = 0.6
"""Fraction of the training run with short videos."""
STATISTICS_BATCHES = 64
OBJECT_WEIGHT, AROUND_PX = 8.0, 3
"""Additional loss weight of the object, and its margin in pixels."""
FINISHED = "vae_finished.safetensors"


class ClipAutoencoder:
    """Training of the video autoencoder. Normalization becomes latents_mean and latents_std."""

    peak_rate = 1e-3

    def untrained(self, seed: int) -> VideoAutoencoder:
        """Return a video autoencoder with random weights."""
        return VideoAutoencoder(CONFIG, rngs=nnx.Rngs(seed))

    def noise(self, progress: float) -> float:
        """Return the noise level of the latents in training."""
        return 0.2

    def batch(self, step: int, progress: float) -> np.ndarray:
        """Return a batch of drawn videos: short ones first, then long ones."""
        rng = np.random.default_rng([23, step])
        short = progress < SHORT_SHARE
        frames, count = (SHORT_FRAMES, SHORT_BATCH) if short else (FRAMES, LONG_BATCH)
        videos = [_part(rng, frames) for _ in range(count)]
        return np.stack(videos).astype(np.float32) / 127.5 - 1

    def moments(self, model: VideoAutoencoder, pixels: jax.Array) -> jax.Array:
        """Return the mean of the encoder's posterior."""
        return model.encode_whole(pixels)[0]

    def pixels(self, model: VideoAutoencoder, normed: Normed) -> jax.Array:
        """Decode latents to videos."""
        return model.decode_whole(normed.raw)

    def weights(self, pixels: jax.Array) -> jax.Array:
        """Return higher weights for the object and its surroundings, the hardest part to learn."""
        ground = pixels[:, :, :1, :1]
        object_ = jnp.abs(pixels - ground).max(axis=-1, keepdims=True) > 0.1
        window = (1, 1, 2 * AROUND_PX + 1, 2 * AROUND_PX + 1, 1)
        near = jax.lax.reduce_window(
            object_.astype(jnp.float32), 0.0, jax.lax.max, window, (1,) * 5, "SAME"
        )
        return 1 + OBJECT_WEIGHT * near

    def finish(self, model: VideoAutoencoder, run: Path) -> None:
        """Write the trained weights, with the normalization of their latents."""
        mean, deviation = statistics(self, model, STATISTICS_BATCHES)
        save(run / FINISHED, _finished(nnx.state(model), mean, deviation))


def _part(rng: np.random.Generator, frames: int) -> np.ndarray:
    """Draw a random video, and return consecutive frames of it."""
    pool = training_motions()
    first = rng.integers(FRAMES - frames + 1)
    return draw(pool[rng.integers(len(pool))], rng)[first : first + frames]


def _finished(weights: nnx.State, mean: np.ndarray, deviation: np.ndarray) -> dict[str, object]:
    return {"weights": weights, "mean": mean, "deviation": deviation}


def trained(run: Path) -> VideoAutoencoder:
    """Load the finished video autoencoder of a run."""
    graph, parameters = nnx.split(ClipAutoencoder().untrained(0))
    zeros = np.zeros(CHANNELS, np.float32)
    saved = restore(run / FINISHED, _finished(parameters, zeros, zeros))
    model: VideoAutoencoder = nnx.merge(graph, saved["weights"])
    model.config = dataclasses.replace(
        CONFIG,
        latents_mean=tuple(map(float, saved["mean"])),
        latents_std=tuple(map(float, saved["deviation"])),
    )
    return model
