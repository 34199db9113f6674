"""Subjects of adapters: pictures that neither the models nor their autoencoder ever saw."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from models.demo.training.pictures import ImageSubject, held_out_prompts
from models.demo.world.checker import Report
from models.demo.world.dataset import random_scene
from models.demo.world.outline_checker import check_outlines
from models.demo.world.scenes import draw, outlined
from models.demo.world.vocabulary import Scene, one_object_scenes

EXAM = 64
"""Prompts of an exam."""
COUNT = 480
"""Drawings that an adapter learns from."""


class Outlines(ImageSubject):
    """Scenes of which only outlines are drawn."""

    name = "outline"
    count = COUNT

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


class NewColour(ImageSubject):
    """Scenes whose object has a colour that the models do not know."""

    count = COUNT

    def __init__(self, name: str) -> None:
        self.name = name

    def scenes(self, rng: np.random.Generator, count: int) -> list[Scene]:
        """Return that many random scenes of one object; every third is of the known colours."""
        new = [scene for scene in recoloured_scenes(self.name) if not scene.held_out]
        return [
            new[rng.integers(len(new))] if n % 3 else random_scene(rng, pairs_share=0)
            for n in range(count)
        ]

    def exams(self) -> Mapping[str, list[str]]:
        """Return held-out prompts, of the new colour and of the known ones."""
        new = [scene.prompt for scene in recoloured_scenes(self.name) if scene.held_out]
        return {
            self.name: [str(prompt) for prompt in np.random.default_rng(3).permutation(new)[:EXAM]],
            "known colours": held_out_prompts(EXAM),
        }


@functools.cache
def recoloured_scenes(colour: str) -> tuple[Scene, ...]:
    """Return every scene of one object of this colour, in a fixed order."""
    scenes = (
        dataclasses.replace(scene, things=(dataclasses.replace(scene.things[0], colour=colour),))
        for scene in one_object_scenes()
    )
    return tuple(dict.fromkeys(scenes))
