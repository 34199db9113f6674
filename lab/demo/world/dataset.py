"""Random training scenes, and the held-out scenes that training excludes."""

from __future__ import annotations

import functools

import numpy as np

from lab.demo.world.vocabulary import Scene, one_object_scenes, two_object_scenes


@functools.cache
def training_scenes() -> tuple[tuple[Scene, ...], tuple[Scene, ...]]:
    """Return the training scenes with one object, and those with two."""
    singles = tuple(scene for scene in one_object_scenes() if not scene.held_out)
    pairs = tuple(scene for scene in two_object_scenes() if not scene.held_out)
    return singles, pairs


@functools.cache
def held_out_scenes() -> tuple[tuple[Scene, ...], tuple[Scene, ...]]:
    """Return the held-out scenes with one object, and those with two."""
    singles = tuple(scene for scene in one_object_scenes() if scene.held_out)
    pairs = tuple(scene for scene in two_object_scenes() if scene.held_out)
    return singles, pairs


def random_scene(rng: np.random.Generator, pairs_share: float) -> Scene:
    """Return a random training scene, with two objects at probability `pairs_share`."""
    singles, pairs = training_scenes()
    pool = pairs if rng.random() < pairs_share else singles
    return pool[rng.integers(len(pool))]
