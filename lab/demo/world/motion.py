"""The demo's videos: one object and its direction of motion, in words and in frames."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from lab.demo.world.scenes import painted
from lab.demo.world.vocabulary import COLOURS, SHAPES, Thing, is_drawn

DIRECTIONS = {"right": "to the right", "left": "to the left", "up": "up", "down": "down"}
VECTORS = {"right": (1.0, 0.0), "left": (-1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}
"""Vector of each direction, (x, y) with y downwards as in images."""

HELD_OUT_SHARE = 0.25

_PAINT = "|".join(COLOURS)
_SENTENCE = re.compile(
    rf"a ({_PAINT}) ({'|'.join(SHAPES)}) moves ({'|'.join(DIRECTIONS.values())}) "
    rf"on a ({_PAINT}) background"
)


@dataclass(frozen=True)
class Motion:
    """Motion of one object over a background, as described by a video prompt."""

    thing: Thing
    direction: str
    background: str

    @property
    def prompt(self) -> str:
        """Sentence that describes the motion completely."""
        moves = f"a {self.thing.colour} {self.thing.shape} moves {DIRECTIONS[self.direction]}"
        return f"{moves} on a {self.background} background"

    @property
    def held_out(self) -> bool:
        """Return whether training excludes this prompt; decided by its hash."""
        return is_drawn(self.prompt, HELD_OUT_SHARE)

    @classmethod
    def parse(cls, prompt: str) -> Self:
        """Parse a video prompt.

        Raises:
            ValueError: the sentence is not one of the demo's.
        """
        match = _SENTENCE.fullmatch(prompt)
        if match is None:
            raise ValueError(f"not a motion of the demo: {prompt!r}")
        colour, shape, words, background = match.groups()
        direction = next(name for name, phrase in DIRECTIONS.items() if phrase == words)
        return cls(Thing(colour, shape), direction, background)


def motions() -> Iterator[Motion]:
    """Yield every motion of the demo's videos, in a fixed order."""
    for colour, background in itertools.permutations(COLOURS, 2):
        for shape, direction in itertools.product(SHAPES, DIRECTIONS):
            yield Motion(Thing(colour, shape), direction, background)


@functools.cache
def training_motions() -> tuple[Motion, ...]:
    """Return the motions used for training."""
    return tuple(motion for motion in motions() if not motion.held_out)


@functools.cache
def held_out_motions() -> tuple[Motion, ...]:
    """Return the motions excluded from training."""
    return tuple(motion for motion in motions() if motion.held_out)


SIZE_PX = 64
"""Side of a video frame."""
FRAMES = 17
FRAMES_PER_SECOND = 8
RADIUS_PX = (13.0, 16.0)
TRAVEL_PX = (16.0, 24.0)
"""Distance between the first and last position, centred about the frame's middle."""
ALONG_SPREAD_PX, ACROSS_SPREAD_PX = 3.0, 5.0


def draw(motion: Motion, rng: np.random.Generator) -> np.ndarray:
    """Draw a motion, uint8 [frames, 64, 64, 3]; unspecified properties are random."""
    radius, travel = rng.uniform(*RADIUS_PX), rng.uniform(*TRAVEL_PX)
    ahead = np.array(VECTORS[motion.direction])
    across = ahead[::-1]
    middle = (
        SIZE_PX / 2
        + ahead * rng.uniform(-ALONG_SPREAD_PX, ALONG_SPREAD_PX)
        + across * rng.uniform(-ACROSS_SPREAD_PX, ACROSS_SPREAD_PX)
    )
    ground = np.broadcast_to(
        np.array(COLOURS[motion.background], np.float32), (SIZE_PX, SIZE_PX, 3)
    )
    path = np.linspace(-travel / 2, travel / 2, FRAMES)
    frames = [painted(ground, motion.thing, middle + at * ahead, radius) for at in path]
    return np.rint(frames).astype(np.uint8)
