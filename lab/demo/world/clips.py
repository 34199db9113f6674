"""Draws the demo's videos: one solid shape that moves steadily over a solid background."""

from __future__ import annotations

import numpy as np

from lab.demo.world.motion import VECTORS, Motion
from lab.demo.world.scenes import painted
from lab.demo.world.vocabulary import COLOURS

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
