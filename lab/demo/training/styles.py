"""Training subjects of adapters: images unlike those of the models and their autoencoder."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from lab.demo.training.images import ImageSubject, held_out_prompts
from lab.demo.world.checker import Report, check_outlines
from lab.demo.world.scenes import draw, outlined, random_scene
from lab.demo.world.vocabulary import Scene, one_object_scenes

EXAM = 64
"""Number of held-out prompts per exam of an adapter."""
COUNT = 480
"""Number of training drawings of an adapter."""


class Outlines(ImageSubject):
    """Training subject with images of outlined shapes."""

    name = "outline"
    count = COUNT

    def scenes(self, rng: np.random.Generator, count: int) -> list[Scene]:
        """Return random training scenes with one object."""
        return [random_scene(rng, pairs_share=0) for _ in range(count)]

    def draw(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """Draw a random outlined image of a scene."""
        return draw(scene, rng, outlined)

    def exams(self) -> Mapping[str, list[str]]:
        """Return the held-out prompts that outlined images are tested on."""
        return {"outline": held_out_prompts(EXAM)}

    def check(self, drawing: np.ndarray, prompt: str) -> Report:
        """Check an image of outlines against its prompt."""
        return check_outlines(drawing, prompt)


class NewColour(ImageSubject):
    """Training subject with an object in a colour that the models are not trained on."""

    count = COUNT

    def __init__(self, name: str) -> None:
        self.name = name

    def scenes(self, rng: np.random.Generator, count: int) -> list[Scene]:
        """Return random scenes with one object, a third of them with known colours."""
        new = [scene for scene in recoloured_scenes(self.name) if not scene.held_out]
        return [
            new[rng.integers(len(new))] if n % 3 else random_scene(rng, pairs_share=0)
            for n in range(count)
        ]

    def exams(self) -> Mapping[str, list[str]]:
        """Return held-out prompts with the new colour, and with known colours."""
        new = [scene.prompt for scene in recoloured_scenes(self.name) if scene.held_out]
        return {
            self.name: [str(prompt) for prompt in np.random.default_rng(3).permutation(new)[:EXAM]],
            "known colours": held_out_prompts(EXAM),
        }


@functools.cache
def recoloured_scenes(colour: str) -> tuple[Scene, ...]:
    """Return every scene with one object of this colour, in a fixed order."""
    scenes = (
        dataclasses.replace(scene, things=(dataclasses.replace(scene.things[0], colour=colour),))
        for scene in one_object_scenes()
    )
    return tuple(dict.fromkeys(scenes))
