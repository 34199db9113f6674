"""Edits of scenes: what an instruction names is all that changes."""

from __future__ import annotations

import numpy as np

from models.demo.recipes.edit import edited
from models.demo.world.checker import check
from models.demo.world.edits import edits
from models.demo.world.overlap import overlap
from models.demo.world.vocabulary import Scene

ONE = Scene.parse("a small red circle on the left of a blue background")
TWO = Scene.parse("a red circle above a green cross on a black background")
ALIKE = Scene.parse("a red circle above a green circle on a black background")
RECOLOURED = 0.9
"""Least overlap of the same things in other colours: pixels at their edges are nobody's."""


def test_an_edit_says_what_it_changes() -> None:
    found = {edit.instruction: edit.after.prompt for edit in edits(ONE)}
    assert found["make the circle green"] == "a small green circle on the left of a blue background"
    assert found["make the circle a cross"] == "a small red cross on the left of a blue background"
    assert found["make the background white"] == (
        "a small red circle on the left of a white background"
    )
    assert "make the circle blue" not in found, "it could not be seen"


def test_of_two_things_one_is_named() -> None:
    found = {edit.instruction: edit.after.prompt for edit in edits(TWO)}
    assert found["make the cross white"] == "a red circle above a white cross on a black background"
    assert "make the cross a circle" not in found
    assert {edit.instruction.split()[2] for edit in edits(ALIKE)} == {"background"}


def test_drawings_differ_in_what_was_edited_alone() -> None:
    drawn = edited([ONE] * 12, seed=1)
    assert len({edit.instruction for edit in drawn.edits}) > 3
    for before, after, edit in zip(drawn.before, drawn.after, drawn.edits, strict=True):
        assert check(before, edit.before.prompt).correct
        assert check(after, edit.after.prompt).correct
        if edit.before.things[0].shape == edit.after.things[0].shape:
            assert overlap(before, after) >= RECOLOURED


def test_overlap_is_of_what_is_not_ground() -> None:
    blue, red = (np.full((8, 8, 3), colour, np.uint8) for colour in ((40, 70, 210), (220, 40, 40)))
    left, right = blue.copy(), blue.copy()
    left[2:4, 2:6], right[2:4, 4:6] = red[0, 0], red[0, 0]
    assert overlap(left, right) == 0.5
    assert overlap(left, left) == 1.0
    assert overlap(blue, blue) == 0.0
