"""Sentences and motions convert into each other, and held-out ones never reach training."""

from __future__ import annotations

import numpy as np
import pytest

from lab.demo.training.moving import VideoSubject, held_out_prompts
from lab.demo.world.motion import Motion, held_out_motions, motions, training_motions
from lab.demo.world.vocabulary import Thing


def test_every_sentence_is_read_back() -> None:
    every = list(motions())
    assert [Motion.parse(motion.prompt) for motion in every] == every
    assert len({motion.prompt for motion in every}) == len(every)


def test_the_sentence_of_the_readme() -> None:
    prompt = "a red circle moves to the right on a blue background"
    motion = Motion(Thing("red", "circle"), "right", "blue")
    assert Motion.parse(prompt) == motion
    assert motion.prompt == prompt


@pytest.mark.parametrize("prompt", ["", "a red circle on a blue background", "a red circle moves"])
def test_other_sentences_are_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="not a motion"):
        Motion.parse(prompt)


def test_enough_is_held_out_and_nothing_is_shared() -> None:
    assert not set(held_out_motions()) & set(training_motions())
    assert len(set(held_out_prompts(100))) == 100
    sampled = VideoSubject().scenes(np.random.default_rng(0), 1000)
    assert not any(motion.held_out for motion in sampled)


def test_the_split_never_moves() -> None:
    """With another split, a trained model would be scored on its training data."""
    assert len(held_out_motions()) == 123
    assert [motion.prompt for motion in held_out_motions()[:2]] == FIRST_HELD_OUT


FIRST_HELD_OUT = [
    "a red circle moves up on a green background",
    "a red square moves up on a green background",
]
