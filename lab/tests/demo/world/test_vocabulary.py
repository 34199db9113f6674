"""Sentences and scenes convert into each other, and held-out ones never reach training."""

from __future__ import annotations

import numpy as np
import pytest

from lab.demo.world.scenes import held_out_scenes, random_scene, training_scenes
from lab.demo.world.vocabulary import Scene, Thing, one_object_scenes, two_object_scenes


def test_every_sentence_is_read_back() -> None:
    scenes = [*one_object_scenes(), *two_object_scenes()]
    assert [Scene.parse(scene.prompt) for scene in scenes] == scenes
    assert len({scene.prompt for scene in scenes}) == len(scenes)


@pytest.mark.parametrize(
    ("prompt", "scene"),
    [
        (
            "a red circle on a blue background",
            Scene((Thing("red", "circle"),), "blue"),
        ),
        (
            "a large green cross at the top of a white background",
            Scene((Thing("green", "cross", "large", "top"),), "white"),
        ),
        (
            "a red circle above a blue square on a yellow background",
            Scene((Thing("red", "circle"), Thing("blue", "square")), "yellow", "above"),
        ),
        (
            "a coral circle on a blue background",
            Scene((Thing("coral", "circle"),), "blue"),
        ),
    ],
)
def test_the_sentences_of_the_readme(prompt: str, scene: Scene) -> None:
    assert Scene.parse(prompt) == scene
    assert scene.prompt == prompt


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "a cat",
        "a red circle",
        "A red circle on a blue background",
        "a red circle on a coral background",
    ],
)
def test_other_sentences_are_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="not a scene"):
        Scene.parse(prompt)


def test_enough_is_held_out_and_nothing_is_shared() -> None:
    held, shown = held_out_scenes(), training_scenes()
    assert len(held[0]) >= 200
    for kind in (0, 1):
        assert not set(held[kind]) & set(shown[kind])
    rng = np.random.default_rng(0)
    assert not any(random_scene(rng, 0.5).held_out for _ in range(2000))


def test_the_split_never_moves() -> None:
    """With another split, a trained model would be scored on its training data."""
    shown = "a red circle on a green background"
    assert Scene.parse("a red circle on a blue background").held_out
    assert not Scene.parse(shown).held_out
    assert [len(scenes) for scenes in held_out_scenes()] == [339, 1106]
