"""Subjects of adapters: pictures that neither the models nor their autoencoder ever saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from models.demo.training.pictures import ImageSubject, held_out_prompts
from models.demo.world.checker import Report
from models.demo.world.dataset import random_scene
from models.demo.world.outline_checker import check_outlines
from models.demo.world.scenes import draw, outlined
from models.demo.world.vocabulary import Scene
from models.vae.image import AutoencoderKL

EXAM = 64
"""Prompts of an exam."""
FIT_STEPS = 24
FIT_RATE = 0.1


class NewPictures(ImageSubject):
    """Pictures whose latents are fitted, for the encoder takes them for what it knows."""

    count = 768

    def encode(self, vae: AutoencoderKL, pixels: Array) -> Array:
        """Return the latents from which the decoder draws these pixels best."""
        return fitted(vae, pixels)


class Outlines(NewPictures):
    """Scenes of which only outlines are drawn."""

    name = "outline"

    def scenes(self, rng: np.random.Generator, count: int) -> list[Scene]:
        """Return that many random scenes of one object."""
        return [random_scene(rng, pairs_share=0) for _ in range(count)]

    def draw(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """Draw one of a scene's images."""
        return draw(scene, rng, outlined)

    def exams(self) -> Mapping[str, list[str]]:
        """Return held-out prompts."""
        return {"outline": held_out_prompts(EXAM)}

    def check(self, drawing: np.ndarray, prompt: str) -> Report:
        """Report what an image shows of its prompt, as outlines."""
        return check_outlines(drawing, prompt)


class NewColour(NewPictures):
    """Scenes whose object has a colour that the models do not know."""

    def __init__(self, name: str) -> None:
        self.name = name

    def scenes(self, rng: np.random.Generator, count: int) -> list[Scene]:
        """Return that many random scenes of one object; every third is of the known colours."""
        scenes = [random_scene(rng, pairs_share=0) for _ in range(count)]
        return [recoloured(scene, self.name) if n % 3 else scene for n, scene in enumerate(scenes)]

    def exams(self) -> Mapping[str, list[str]]:
        """Return held-out prompts: of the new colour, and as they are."""
        known = held_out_prompts(EXAM)
        new = [recoloured(Scene.parse(prompt), self.name).prompt for prompt in known]
        return {self.name: new, "known colours": known}


def recoloured(scene: Scene, colour: str) -> Scene:
    """Return the scene with its first thing in this colour."""
    first, *rest = scene.things
    return dataclasses.replace(scene, things=(dataclasses.replace(first, colour=colour), *rest))


def fitted(
    vae: AutoencoderKL, pixels: Float[Array, "batch height width 3"]
) -> Float[Array, "batch h w c"]:
    """Return latents by descent on the decoder's squared error, from those of the encoder."""
    optimizer = optax.adam(FIT_RATE)

    def error(latents: Array) -> Array:
        return jnp.square(vae.decode(latents) - pixels).mean()

    def step(_: int, carry: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
        latents, memory = carry
        updates, memory = optimizer.update(jax.grad(error)(latents), memory)
        return latents + updates, memory

    first = vae.encode(pixels)[0]
    latents, _ = jax.lax.fori_loop(0, FIT_STEPS, step, (first, optimizer.init(first)))
    return latents
