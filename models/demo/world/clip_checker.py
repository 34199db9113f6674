"""Read a clip and say which of the things that its prompt names are right.

Every frame is read as the picture checker reads a picture; what is named must be right in all of
them. The object must move steadily in the named direction and keep its size.
"""

from __future__ import annotations

import numpy as np

from models.demo.world.checker import Found, Report, read
from models.demo.world.motion import VECTORS, Motion

MIN_TRAVEL = 0.15
"""Minimum travel from the first frame to the last, as a share of the frame's side."""
MAX_DRIFT = 0.5
"""Maximum travel aside, as a share of the travel ahead."""
MAX_RETREAT = 0.02
"""Maximum retreat of a frame behind the one before it, as a share of the side: reading a centre is
no finer than half a pixel."""
MAX_LEAP = 0.5
"""Maximum share of the travel between two neighbouring frames."""
MAX_GROWTH = 1.25
"""Largest extent of the object over its smallest."""


def check(frames: np.ndarray, prompt: str) -> Report:
    """Hold a clip, uint8 [frames, height, width, 3], against its prompt.

    Raises:
        ValueError: the prompt is not one of the demo's sentences, or there is but one frame.
    """
    motion = Motion.parse(prompt)
    if len(frames) < 2:
        raise ValueError("a clip has at least two frames")
    seen = [read(frame) for frame in frames]
    alone = [found[0] for _, found in seen if len(found) == 1]
    whole = len(alone) == len(frames)
    return Report(
        {
            "background": all(ground == motion.background for ground, _ in seen),
            "count": whole,
            "colour": whole and all(found.colour == motion.thing.colour for found in alone),
            "shape": whole and all(found.shape == motion.thing.shape for found in alone),
            "size": whole and _keeps_size(alone),
            "direction": whole and _moves(alone, motion.direction),
        }
    )


def _keeps_size(seen: list[Found]) -> bool:
    extents = [found.extent for found in seen]
    return max(extents) <= MAX_GROWTH * min(extents)


def _moves(seen: list[Found], direction: str) -> bool:
    """Far enough, in this direction rather than aside, and steadily."""
    ahead = np.array(VECTORS[direction])
    centres = np.array([(found.x, found.y) for found in seen])
    along, aside = centres @ ahead, centres @ ahead[::-1]
    way, steps = along[-1] - along[0], np.diff(along)
    return bool(
        way >= MIN_TRAVEL
        and np.ptp(aside) <= MAX_DRIFT * way
        and steps.min() >= -MAX_RETREAT
        and steps.max() <= MAX_LEAP * way
    )
