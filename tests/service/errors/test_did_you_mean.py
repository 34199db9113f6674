"""Suggestions for unknown names."""

from __future__ import annotations

import pytest

from service.errors.did_you_mean import MAX_CHARS, did_you_mean

KNOWN = ("prompt", "negative_prompt", "num_inference_steps", "strength", "height")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("promt", "prompt"),
        ("strenght", "strength"),
        ("numInferenceSteps", "num_inference_steps"),
        ("negative-prompt", "negative_prompt"),
        ("HEIGHT", "height"),
        ("style", None),
        ("x", None),
        ("", None),
    ],
)
def test_the_nearest_spelling_is_suggested(name: str, meant: str | None) -> None:
    assert did_you_mean(name, KNOWN) == meant


def test_name_in_another_api_precedes_spelling() -> None:
    assert did_you_mean("Strengths", KNOWN, {"strengths": "guidance"}) == "guidance"


def test_long_names_are_not_compared() -> None:
    assert did_you_mean("prompt" * MAX_CHARS, KNOWN) is None
