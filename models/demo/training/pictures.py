"""The demo's pictures as a subject to learn: scenes of one object or two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array

from models.demo.training.image_vae import ImageAutoencoder, trained
from models.demo.world.checker import Report, check
from models.demo.world.dataset import held_out_scenes, random_scene
from models.demo.world.scenes import draw
from models.demo.world.vocabulary import Scene
from models.interface.images import to_uint8
from models.vae.image import AutoencoderKL

PAIRS_SHARE = 0.25
ONE, TWO = 100, 25
SHEET_COLUMNS = 8


class ImageSubject:
    """Implementation of `models.demo.training.recipe.Subject`."""

    name = "pictures"
    count = 50_000

    def scenes(self, rng: np.random.Generator, count: int) -> list[Scene]:
        """Return that many random scenes."""
        return [random_scene(rng, PAIRS_SHARE) for _ in range(count)]

    def draw(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """Draw one of a scene's images."""
        return draw(scene, rng)

    def exams(self) -> Mapping[str, list[str]]:
        """Return the prompts of each exam."""
        return {
            "one object": held_out_prompts(ONE),
            "two objects": held_out_prompts(TWO, pairs=True),
        }

    def check(self, drawing: np.ndarray, prompt: str) -> Report:
        """Report what an image shows of its prompt."""
        return check(drawing, prompt)

    def sheet(self, drawings: np.ndarray) -> np.ndarray:
        """Return images side by side, as one."""
        whole = drawings[: len(drawings) // SHEET_COLUMNS * SHEET_COLUMNS]
        rows = [np.hstack(list(row)) for row in whole.reshape(-1, SHEET_COLUMNS, *whole.shape[1:])]
        return np.vstack(rows)

    def autoencoder(self, run: Path) -> AutoencoderKL:
        """Return the trained autoencoder."""
        return trained(run)

    def untrained_autoencoder(self) -> AutoencoderKL:
        """Return one with random weights."""
        return ImageAutoencoder().untrained(0)

    def encode(self, vae: AutoencoderKL, pixels: Array) -> Array:
        """Encode images: normed latents."""
        return vae.encode(pixels)[0]

    def decode(self, vae: AutoencoderKL, latents: Array) -> Array:
        """Decode normed latents: uint8."""
        return jax.vmap(to_uint8)(vae.decode(latents))


def held_out_prompts(count: int, pairs: bool = False) -> list[str]:
    """The first `count` held-out prompts of one object (or two), in a fixed shuffled order."""
    scenes = held_out_scenes()[pairs]
    order = np.random.default_rng(3).permutation(len(scenes))
    return [scenes[index].prompt for index in order[:count]]
