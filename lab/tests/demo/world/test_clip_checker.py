"""The video checker accepts every drawing, and detects each wrong property and kind of damage."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from lab.demo.world.clip_checker import check
from lab.demo.world.motion import DIRECTIONS, Motion, draw, motions
from lab.demo.world.vocabulary import COLOURS, SHAPES, Thing

RIGHT = Motion(Thing("red", "circle"), "right", "blue")


def clip(motion: Motion = RIGHT, seed: int = 0) -> np.ndarray:
    return draw(motion, np.random.default_rng(seed))


def wrong(frames: np.ndarray, motion: Motion = RIGHT) -> set[str]:
    """Names of the criteria that fail."""
    return {name for name, ok in check(frames, motion.prompt).criteria.items() if not ok}


def test_drawings_pass_the_checker() -> None:
    """Check every seventh motion; seven is prime to the numbers of words, so all pairs of words
    occur."""
    for seed, motion in enumerate(list(motions())[::7]):
        assert wrong(clip(motion, seed), motion) == set(), motion.prompt


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_each_wrong_claim_is_detected_separately(direction: str) -> None:
    motion = dataclasses.replace(RIGHT, direction=direction)
    frames = clip(motion)
    others = [other for other in DIRECTIONS if other != direction]
    for other in others:
        assert wrong(frames, dataclasses.replace(motion, direction=other)) == {"direction"}
    for shape in SHAPES[1:]:
        assert wrong(frames, dataclasses.replace(motion, thing=Thing("red", shape))) == {"shape"}
    painted = dataclasses.replace(motion, thing=Thing("green", "circle"))
    assert wrong(frames, painted) == {"colour"}
    assert wrong(frames, dataclasses.replace(motion, background="white")) == {"background"}


def test_a_clip_backwards_moves_the_other_way() -> None:
    assert wrong(clip()[::-1]) == {"direction"}


def test_a_still_object_does_not_move() -> None:
    frames = clip()
    assert wrong(np.repeat(frames[:1], len(frames), axis=0)) == {"direction"}


def test_returning_motion_has_no_direction() -> None:
    frames = clip()
    first_half = frames[: len(frames) // 2 + 1]
    assert wrong(np.concatenate([first_half, first_half[::-1][1:]])) == {"direction"}


def test_jump_between_positions_has_no_direction() -> None:
    frames = clip()
    leaping = np.concatenate([np.repeat(frames[:1], 9, axis=0), np.repeat(frames[-1:], 8, axis=0)])
    assert wrong(leaping) == {"direction"}


def test_swapped_frames_have_no_direction() -> None:
    frames = clip().copy()
    frames[8], frames[4] = clip()[4], clip()[8]
    assert wrong(frames) == {"direction"}


def test_a_drift_aside_is_another_direction() -> None:
    """The object moves right and equally far down."""
    frames = clip()
    falling = [np.roll(frame, index, axis=0) for index, frame in enumerate(frames)]
    assert "direction" in wrong(np.stack(falling)[:12])


@pytest.mark.parametrize("frame", [0, 8, 16])
def test_one_wrong_frame_is_enough(frame: int) -> None:
    frames = clip()
    other = clip(dataclasses.replace(RIGHT, thing=Thing("red", "cross")))
    empty = np.full_like(frames[0], COLOURS["blue"])
    noise = np.random.default_rng(1).integers(0, 256, frames[0].shape, dtype=np.uint8)
    for damage, criterion in ((other[frame], "shape"), (empty, "count"), (noise, "background")):
        damaged = frames.copy()
        damaged[frame] = damage
        assert criterion in wrong(damaged)


def test_a_second_object_is_counted() -> None:
    frames = clip().copy()
    frames[5:, 2:12, 2:12] = COLOURS["yellow"]
    assert "count" in wrong(frames)


def test_an_object_that_grows_is_caught() -> None:
    """Enlarge the frames gradually around their center, by up to a half."""
    frames = clip()
    side = frames.shape[1]
    offsets = np.arange(side) - (side - 1) / 2
    grown = []
    for index, frame in enumerate(frames):
        zoom = 1 + 0.5 * index / (len(frames) - 1)
        rows = np.clip(np.rint(offsets / zoom + (side - 1) / 2), 0, side - 1).astype(int)
        grown.append(frame[rows][:, rows])
    assert "size" in wrong(np.stack(grown))


def test_noise_meets_no_criterion() -> None:
    noise = np.random.default_rng(2).integers(0, 256, (17, 64, 64, 3), dtype=np.uint8)
    assert not any(check(noise, RIGHT.prompt).criteria.values())


def test_image_is_rejected_as_a_video() -> None:
    with pytest.raises(ValueError, match="two frames"):
        check(clip()[:1], RIGHT.prompt)


def test_any_size_and_length_is_read() -> None:
    frames = clip()[::2].repeat(2, axis=1).repeat(2, axis=2)
    assert wrong(frames) == set()
