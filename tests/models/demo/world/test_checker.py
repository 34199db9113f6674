"""The checker accepts every drawing, catches each single lie, and finds nothing in noise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from models.demo.world.checker import check
from models.demo.world.scenes import draw
from models.demo.world.vocabulary import (
    COLOURS,
    NEW_COLOURS,
    RELATIONS,
    SHAPES,
    Scene,
    one_object_scenes,
    two_object_scenes,
)

LARGE = "a large red circle on the left of a blue background"
SMALL = "a small red circle on the left of a blue background"


@pytest.mark.parametrize(
    ("scenes", "every"), [(one_object_scenes, 7), (two_object_scenes, 41)], ids=["one", "two"]
)
def test_drawings_are_right(scenes, every: int) -> None:  # type: ignore[no-untyped-def]
    """Every so-manieth scene: a step prime to the words' counts meets all their pairs."""
    rng = np.random.default_rng(1)
    drawn = [scene for index, scene in enumerate(scenes()) if index % every == 0]
    right = [check(draw(scene, rng), scene.prompt).correct for scene in drawn]
    assert np.mean(right) >= 0.99


def lies(scene: Scene) -> dict[str, Scene]:
    """Scenes that differ from this one in a single named thing, by the criterion that tells."""
    first, *rest = scene.things
    others = {thing.colour for thing in scene.things} | {scene.background}
    free = next(name for name in COLOURS if name not in others)
    shape = SHAPES[(SHAPES.index(first.shape) + 1) % len(SHAPES)]

    def with_first(**changes: str) -> Scene:
        return dataclasses.replace(scene, things=(dataclasses.replace(first, **changes), *rest))

    told = {
        "background": dataclasses.replace(scene, background=free),
        "colour": with_first(colour=free),
        "shape": with_first(shape=shape),
    }
    if first.size:
        told["size"] = with_first(size="large" if first.size == "small" else "small")
    if first.place:
        told["place"] = with_first(place="bottom" if first.place != "bottom" else "middle")
    if scene.relation:
        opposite = {"above": "below", "below": "above", "left": "right", "right": "left"}
        told["relation"] = dataclasses.replace(scene, relation=opposite[scene.relation])
    return told


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("place", ["left", "right", "top", "bottom", "middle"])
def test_each_lie_is_caught_alone(shape: str, size: str, place: str) -> None:
    scene = next(
        scene
        for scene in one_object_scenes()
        if (thing := scene.things[0]).shape == shape and (thing.size, thing.place) == (size, place)
    )
    picture = draw(scene, np.random.default_rng(2))
    for criterion, told in lies(scene).items():
        report = check(picture, told.prompt)
        assert not report.criteria[criterion], told.prompt
        assert {name for name, right in report.criteria.items() if not right} <= {criterion} | (
            {"colour", "shape", "size", "place"} if criterion == "colour" else set()
        )


@pytest.mark.parametrize("name", NEW_COLOURS)
def test_a_new_colour_is_told_from_the_known_ones(name: str) -> None:
    scene = Scene.parse(LARGE)
    new = dataclasses.replace(scene, things=(dataclasses.replace(scene.things[0], colour=name),))
    rng = np.random.default_rng(8)
    assert check(draw(new, rng), new.prompt).correct
    for told, drawn in ((scene, new), (new, scene)):
        assert not check(draw(drawn, rng), told.prompt).criteria["colour"]


@pytest.mark.parametrize("relation", RELATIONS)
def test_each_lie_about_two_objects_is_caught(relation: str) -> None:
    scene = next(scene for scene in two_object_scenes() if scene.relation == relation)
    picture = draw(scene, np.random.default_rng(3))
    assert check(picture, scene.prompt).correct
    for criterion, told in lies(scene).items():
        assert not check(picture, told.prompt).criteria[criterion], told.prompt


def test_a_missing_and_an_extra_object_are_counted() -> None:
    rng = np.random.default_rng(4)
    two = "a red circle above a blue square on a yellow background"
    one = "a red circle on a yellow background"
    assert not check(draw(Scene.parse(one), rng), two).criteria["count"]
    assert not check(draw(Scene.parse(two), rng), one).criteria["count"]


def test_softness_is_borne_and_a_blob_is_not_a_cross() -> None:
    rng = np.random.default_rng(5)
    prompt = "a small black cross on a white background"
    sharp = draw(Scene.parse(prompt), rng).astype(np.float32)
    assert check(blurred(sharp, 1), prompt).correct
    assert not check(blurred(sharp, 8), prompt).correct


def test_nothing_is_right_in_noise() -> None:
    rng = np.random.default_rng(6)
    noise = rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)
    for prompt in (LARGE, SMALL):
        assert not any(check(noise, prompt).criteria.values())


def test_any_size_of_picture_is_read() -> None:
    picture = draw(Scene.parse(LARGE), np.random.default_rng(7))
    assert check(picture.repeat(2, axis=0).repeat(2, axis=1), LARGE).correct


def blurred(picture: np.ndarray, reach: int) -> np.ndarray:
    """Mean over a window of 2 · reach + 1 pixels a side."""
    padded = np.pad(picture, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, (2 * reach + 1, 2 * reach + 1), axis=(0, 1)
    )
    return np.rint(windows.mean((-1, -2))).astype(np.uint8)
