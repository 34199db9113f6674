"""Scenes for training, drawn at random and never from those held out."""

from __future__ import annotations

import functools

import numpy as np

from models.demo.world.vocabulary import Scene, one_object_scenes, two_object_scenes


@functools.cache
def training_scenes() -> tuple[tuple[Scene, ...], tuple[Scene, ...]]:
    """Scenes of one object and of two that training may see."""
    one = tuple(scene for scene in one_object_scenes() if not scene.held_out)
    two = tuple(scene for scene in two_object_scenes() if not scene.held_out)
    return one, two


@functools.cache
def held_out_scenes() -> tuple[tuple[Scene, ...], tuple[Scene, ...]]:
    """Scenes of one object and of two that training never sees."""
    one = tuple(scene for scene in one_object_scenes() if scene.held_out)
    two = tuple(scene for scene in two_object_scenes() if scene.held_out)
    return one, two


def random_scene(rng: np.random.Generator, pairs_share: float) -> Scene:
    """A training scene; of two objects with probability `pairs_share`."""
    one, two = training_scenes()
    pool = two if rng.random() < pairs_share else one
    return pool[rng.integers(len(pool))]
