"""Edits of scenes change only what their instruction names."""

from __future__ import annotations

import numpy as np

from lab.demo.recipes.edit import edited
from lab.demo.world.checker import check, overlap
from lab.demo.world.edits import edits
from lab.demo.world.vocabulary import Scene

ONE = Scene.parse("a small red circle on the left of a blue background")
TWO = Scene.parse("a red circle above a green cross on a black background")
ALIKE = Scene.parse("a red circle above a green circle on a black background")
RECOLOURED = 0.9
"""Minimum overlap of recolored objects; pixels at their edges belong to neither."""


def test_an_edit_says_what_it_changes() -> None:
    prompts_by_instruction = {edit.instruction: edit.after.prompt for edit in edits(ONE)}
    assert (
        prompts_by_instruction["make the circle green"]
        == "a small green circle on the left of a blue background"
    )
    assert (
        prompts_by_instruction["make the circle a cross"]
        == "a small red cross on the left of a blue background"
    )
    assert prompts_by_instruction["make the background white"] == (
        "a small red circle on the left of a white background"
    )
    assert "make the circle blue" not in prompts_by_instruction, "it could not be seen"


def test_edits_name_one_of_two_objects() -> None:
    prompts_by_instruction = {edit.instruction: edit.after.prompt for edit in edits(TWO)}
    assert (
        prompts_by_instruction["make the cross white"]
        == "a red circle above a white cross on a black background"
    )
    assert "make the cross a circle" not in prompts_by_instruction
    assert {edit.instruction.split()[2] for edit in edits(ALIKE)} == {"background"}


def test_drawings_differ_only_in_the_edit() -> None:
    result = edited([ONE] * 12, seed=1)
    assert len({edit.instruction for edit in result.edits}) > 3
    for before, after, edit in zip(result.before, result.after, result.edits, strict=True):
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
