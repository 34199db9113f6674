"""Training subject of the demo's images: scenes of one or two objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array

from lab.demo.training.image_vae import ImageAutoencoder, trained
from lab.demo.world.checker import Report, check
from lab.demo.world.scenes import draw, held_out_scenes, random_scene
from lab.demo.world.vocabulary import Scene
from models.interface.images import to_uint8
from models.vae.image import AutoencoderKL

PAIRS_SHARE = 0.25
ONE, TWO = 100, 25
SHEET_COLUMNS = 8


class ImageSubject:
    """Training subject with images of one or two objects; implements `recipe.Subject`."""

    name = "pictures"
    count = 50_000

    def scenes(self, rng: np.random.Generator, count: int) -> list[Scene]:
        """Return random training scenes."""
        return [random_scene(rng, PAIRS_SHARE) for _ in range(count)]

    def draw(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """Draw a random image of a scene."""
        return draw(scene, rng)

    def exams(self) -> Mapping[str, list[str]]:
        """Return the held-out prompts of one and of two objects."""
        return {
            "one object": held_out_prompts(ONE),
            "two objects": held_out_prompts(TWO, pairs=True),
        }

    def check(self, drawing: np.ndarray, prompt: str) -> Report:
        """Check an image against its prompt."""
        return check(drawing, prompt)

    def sheet(self, drawings: np.ndarray) -> np.ndarray:
        """Compose images into one contact sheet."""
        complete = drawings[: len(drawings) // SHEET_COLUMNS * SHEET_COLUMNS]
        rows = [
            np.hstack(list(row)) for row in complete.reshape(-1, SHEET_COLUMNS, *complete.shape[1:])
        ]
        return np.vstack(rows)

    def autoencoder(self, run: Path) -> AutoencoderKL:
        """Return the trained image autoencoder of a run."""
        return trained(run)

    def untrained_autoencoder(self) -> AutoencoderKL:
        """Return an image autoencoder with random weights."""
        return ImageAutoencoder().untrained(0)

    def encode(self, vae: AutoencoderKL, pixels: Array) -> Array:
        """Encode images to normalized latents."""
        return vae.encode(pixels)[0]

    def decode(self, vae: AutoencoderKL, latents: Array) -> Array:
        """Decode normalized latents to uint8 images."""
        return jax.vmap(to_uint8)(vae.decode(latents))


def held_out_prompts(count: int, pairs: bool = False) -> list[str]:
    """Return the first `count` held-out prompts of one object or two, in a fixed shuffled order."""
    scenes = held_out_scenes()[pairs]
    order = np.random.default_rng(3).permutation(len(scenes))
    return [scenes[index].prompt for index in order[:count]]
