"""The demo's clips as a subject to learn: one object that moves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from models.demo.training.video_vae import ClipAutoencoder, trained
from models.demo.world.checker import Report
from models.demo.world.clip_checker import check
from models.demo.world.clips import draw
from models.demo.world.motion import Motion, held_out_motions, training_motions
from models.interface.images import to_uint8
from models.vae.video import VideoAutoencoder

PROMPTS = 100
SHEET_CLIPS, SHEET_FRAMES = 16, 9


class VideoSubject:
    """Implementation of `models.demo.training.recipe.Subject`."""

    name = "clips"
    count = 5_000

    def scenes(self, rng: np.random.Generator, count: int) -> list[Motion]:
        """Return that many scenes out of those that are trained on."""
        pool = training_motions()
        return [pool[rng.integers(len(pool))] for _ in range(count)]

    def draw(self, scene: Motion, rng: np.random.Generator) -> np.ndarray:
        """Draw one of a scene's videos."""
        return draw(scene, rng)

    def exams(self) -> Mapping[str, list[str]]:
        """Return the prompts of each exam."""
        return {"motions": held_out_prompts(PROMPTS)}

    def check(self, drawing: np.ndarray, prompt: str) -> Report:
        """Report what a video shows of its prompt."""
        return check(drawing, prompt)

    def sheet(self, drawings: np.ndarray) -> np.ndarray:
        """A clip a row, its frames from left to right."""
        chosen = np.linspace(0, drawings.shape[1] - 1, SHEET_FRAMES).astype(int)
        return np.vstack([np.hstack(list(clip[chosen])) for clip in drawings[:SHEET_CLIPS]])

    def autoencoder(self, run: Path) -> VideoAutoencoder:
        """Return the trained autoencoder."""
        return trained(run)

    def untrained_autoencoder(self) -> VideoAutoencoder:
        """Return one with random weights."""
        return ClipAutoencoder().untrained(0)

    def encode(self, vae: VideoAutoencoder, pixels: Array) -> Array:
        """Encode videos: normed latents."""
        mean, deviation = _norm(vae)
        return (vae.encode_whole(pixels)[0] - mean) / deviation

    def decode(self, vae: VideoAutoencoder, latents: Array) -> Array:
        """Decode normed latents: uint8."""
        mean, deviation = _norm(vae)
        return jax.vmap(to_uint8)(vae.decode_whole(latents * deviation + mean))


def held_out_prompts(count: int) -> list[str]:
    """The first `count` held-out prompts, in a fixed shuffled order."""
    held = held_out_motions()
    order = np.random.default_rng(3).permutation(len(held))
    return [held[index].prompt for index in order[:count]]


def _norm(vae: VideoAutoencoder) -> tuple[Array, Array]:
    config = vae.config
    return jnp.array(config.latents_mean), jnp.array(config.latents_std)
