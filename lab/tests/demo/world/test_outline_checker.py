"""The outline checker accepts every outline, and rejects filled shapes and wrong properties."""

from __future__ import annotations

import numpy as np
import pytest

from lab.demo.world import checker
from lab.demo.world.checker import check_outlines
from lab.demo.world.scenes import draw, outlined
from lab.demo.world.vocabulary import Scene, one_object_scenes

EVERY = 13
"""Prime to the numbers of words, so that all pairs of words occur."""


def scenes() -> list[Scene]:
    return list(one_object_scenes())[::EVERY]


def test_outlines_pass_the_checker() -> None:
    rng = np.random.default_rng(1)
    reports = [check_outlines(draw(scene, rng, outlined), scene.prompt) for scene in scenes()]
    # One in a hundred may fail: a random size or place can be on the border between two words.
    assert np.mean([report.correct for report in reports]) >= 0.99


def test_each_checker_refuses_the_others_drawings() -> None:
    rng = np.random.default_rng(2)
    for scene in scenes():
        assert not check_outlines(draw(scene, rng), scene.prompt).criteria["outline"]
        assert not checker.check(draw(scene, rng, outlined), scene.prompt).criteria["shape"]


@pytest.mark.parametrize(
    ("criterion", "told"),
    [
        ("background", "a large red circle on the left of a green background"),
        ("colour", "a large white circle on the left of a blue background"),
        ("shape", "a large red square on the left of a blue background"),
        ("size", "a small red circle on the left of a blue background"),
        ("place", "a large red circle on the right of a blue background"),
    ],
)
def test_false_statement_about_an_outline_is_detected(criterion: str, told: str) -> None:
    scene = Scene.parse("a large red circle on the left of a blue background")
    image = draw(scene, np.random.default_rng(3), outlined)
    assert check_outlines(image, scene.prompt).correct
    assert not check_outlines(image, told).criteria[criterion]


def test_open_outline_does_not_count() -> None:
    scene = Scene.parse("a large red square in the middle of a blue background")
    image = draw(scene, np.random.default_rng(4), outlined)
    image[:48] = image[0, 0]
    assert not check_outlines(image, scene.prompt).criteria["outline"]
