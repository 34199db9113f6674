"""Training subject of the demo's videos: one object that moves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lab.demo.training.video_vae import ClipAutoencoder, trained
from lab.demo.world.checker import Report
from lab.demo.world.clip_checker import check
from lab.demo.world.motion import Motion, draw, held_out_motions, training_motions
from models.interface.images import to_uint8
from models.vae.video import VideoAutoencoder

PROMPTS = 100
SHEET_CLIPS, SHEET_FRAMES = 16, 9


class VideoSubject:
    """Training subject with videos of one moving object; implements `recipe.Subject`."""

    name = "clips"
    count = 5_000

    def scenes(self, rng: np.random.Generator, count: int) -> list[Motion]:
        """Return random training motions."""
        pool = training_motions()
        return [pool[rng.integers(len(pool))] for _ in range(count)]

    def draw(self, scene: Motion, rng: np.random.Generator) -> np.ndarray:
        """Draw a random video of a motion."""
        return draw(scene, rng)

    def exams(self) -> Mapping[str, list[str]]:
        """Return the held-out prompts that videos are tested on."""
        return {"motions": held_out_prompts(PROMPTS)}

    def check(self, drawing: np.ndarray, prompt: str) -> Report:
        """Check a video against its prompt."""
        return check(drawing, prompt)

    def sheet(self, drawings: np.ndarray) -> np.ndarray:
        """Compose a contact sheet: one video per row, frames from left to right."""
        chosen = np.linspace(0, drawings.shape[1] - 1, SHEET_FRAMES).astype(int)
        return np.vstack([np.hstack(list(video[chosen])) for video in drawings[:SHEET_CLIPS]])

    def autoencoder(self, run: Path) -> VideoAutoencoder:
        """Return the trained video autoencoder of a run."""
        return trained(run)

    def untrained_autoencoder(self) -> VideoAutoencoder:
        """Return a video autoencoder with random weights."""
        return ClipAutoencoder().untrained(0)

    def encode(self, vae: VideoAutoencoder, pixels: Array) -> Array:
        """Encode videos to normalized latents."""
        mean, deviation = _norm(vae)
        return (vae.encode_whole(pixels)[0] - mean) / deviation

    def decode(self, vae: VideoAutoencoder, latents: Array) -> Array:
        """Decode normalized latents to uint8 videos."""
        mean, deviation = _norm(vae)
        return jax.vmap(to_uint8)(vae.decode_whole(latents * deviation + mean))


def held_out_prompts(count: int) -> list[str]:
    """Return the first `count` held-out prompts, in a fixed shuffled order."""
    scenes = held_out_motions()
    order = np.random.default_rng(3).permutation(len(scenes))
    return [scenes[index].prompt for index in order[:count]]


def _norm(vae: VideoAutoencoder) -> tuple[Array, Array]:
    config = vae.config
    return jnp.array(config.latents_mean), jnp.array(config.latents_std)
