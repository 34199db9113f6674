"""The checker accepts every drawing, detects each single wrong property, and rejects noise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from lab.demo.world.checker import check
from lab.demo.world.scenes import draw
from lab.demo.world.vocabulary import (
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
def test_drawings_pass_the_checker(scenes, every: int) -> None:
    """Check every n-th scene; n is prime to the numbers of words, so all pairs of words occur."""
    rng = np.random.default_rng(1)
    selected = [scene for index, scene in enumerate(scenes()) if index % every == 0]
    correct = [check(draw(scene, rng), scene.prompt).correct for scene in selected]
    assert np.mean(correct) >= 0.99


def lies(scene: Scene) -> dict[str, Scene]:
    """Scenes that differ from this one in one named property, by the criterion that detects it."""
    first, *rest = scene.things
    used_colours = {thing.colour for thing in scene.things} | {scene.background}
    free = next(name for name in COLOURS if name not in used_colours)
    shape = SHAPES[(SHAPES.index(first.shape) + 1) % len(SHAPES)]

    def with_first(**changes: str) -> Scene:
        return dataclasses.replace(scene, things=(dataclasses.replace(first, **changes), *rest))

    wrong_scenes = {
        "background": dataclasses.replace(scene, background=free),
        "colour": with_first(colour=free),
        "shape": with_first(shape=shape),
    }
    if first.size:
        wrong_scenes["size"] = with_first(size="large" if first.size == "small" else "small")
    if first.place:
        wrong_scenes["place"] = with_first(place="bottom" if first.place != "bottom" else "middle")
    if scene.relation:
        opposite = {"above": "below", "below": "above", "left": "right", "right": "left"}
        wrong_scenes["relation"] = dataclasses.replace(scene, relation=opposite[scene.relation])
    return wrong_scenes


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("place", ["left", "right", "top", "bottom", "middle"])
def test_each_wrong_claim_is_detected_separately(shape: str, size: str, place: str) -> None:
    scene = next(
        scene
        for scene in one_object_scenes()
        if (thing := scene.things[0]).shape == shape and (thing.size, thing.place) == (size, place)
    )
    image = draw(scene, np.random.default_rng(2))
    for criterion, wrong_scene in lies(scene).items():
        report = check(image, wrong_scene.prompt)
        assert not report.criteria[criterion], wrong_scene.prompt
        assert {name for name, holds in report.criteria.items() if not holds} <= {criterion} | (
            {"colour", "shape", "size", "place"} if criterion == "colour" else set()
        )


@pytest.mark.parametrize("name", NEW_COLOURS)
def test_new_colour_is_distinguished_from_known_ones(name: str) -> None:
    scene = Scene.parse(LARGE)
    new = dataclasses.replace(scene, things=(dataclasses.replace(scene.things[0], colour=name),))
    rng = np.random.default_rng(8)
    assert check(draw(new, rng), new.prompt).correct
    for described, shown in ((scene, new), (new, scene)):
        assert not check(draw(shown, rng), described.prompt).criteria["colour"]


@pytest.mark.parametrize("relation", RELATIONS)
def test_each_false_statement_about_two_objects_is_detected(relation: str) -> None:
    scene = next(scene for scene in two_object_scenes() if scene.relation == relation)
    image = draw(scene, np.random.default_rng(3))
    assert check(image, scene.prompt).correct
    for criterion, wrong_scene in lies(scene).items():
        assert not check(image, wrong_scene.prompt).criteria[criterion], wrong_scene.prompt


def test_a_missing_and_an_extra_object_are_counted() -> None:
    rng = np.random.default_rng(4)
    double = "a red circle above a blue square on a yellow background"
    single = "a red circle on a yellow background"
    assert not check(draw(Scene.parse(single), rng), double).criteria["count"]
    assert not check(draw(Scene.parse(double), rng), single).criteria["count"]


def test_softness_is_borne_and_a_blob_is_not_a_cross() -> None:
    rng = np.random.default_rng(5)
    prompt = "a small black cross on a white background"
    sharp = draw(Scene.parse(prompt), rng).astype(np.float32)
    assert check(blurred(sharp, 1), prompt).correct
    assert not check(blurred(sharp, 8), prompt).correct


def test_noise_meets_no_criterion() -> None:
    rng = np.random.default_rng(6)
    noise = rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)
    for prompt in (LARGE, SMALL):
        assert not any(check(noise, prompt).criteria.values())


def test_any_image_size_is_read() -> None:
    image = draw(Scene.parse(LARGE), np.random.default_rng(7))
    assert check(image.repeat(2, axis=0).repeat(2, axis=1), LARGE).correct


def blurred(picture: np.ndarray, reach: int) -> np.ndarray:
    """Blur by the mean over a window of 2 · reach + 1 pixels a side."""
    padded = np.pad(picture, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, (2 * reach + 1, 2 * reach + 1), axis=(0, 1)
    )
    return np.rint(windows.mean((-1, -2))).astype(np.uint8)
