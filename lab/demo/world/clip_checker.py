"""Checks a video against its prompt.

Each frame is checked like an image, and each criterion must be met in all frames. The object must
move steadily in the named direction and keep its size.
"""

from __future__ import annotations

import numpy as np

from lab.demo.world.checker import DetectedObject, Report, read
from lab.demo.world.motion import VECTORS, Motion

MIN_TRAVEL = 0.15
"""Minimum distance between first and last position, as a fraction of the frame's side."""
MAX_DRIFT = 0.5
"""Maximum sideways movement, as a fraction of the distance travelled."""
MAX_RETREAT = 0.02
"""Maximum backward movement between two frames, as a fraction of the side; centres are accurate to
half a pixel."""
MAX_LEAP = 0.5
"""Maximum movement between two frames, as a fraction of the distance travelled."""
MAX_GROWTH = 1.25
"""Maximum ratio of the object's largest extent to its smallest."""


def check(frames: np.ndarray, prompt: str) -> Report:
    """Check a video, uint8 [frames, height, width, 3], against its prompt.

    Raises:
        ValueError: the prompt is not one of the demo's sentences, or there is only one frame.
    """
    motion = Motion.parse(prompt)
    if len(frames) < 2:
        raise ValueError("a clip has at least two frames")
    results = [read(frame) for frame in frames]
    objects = [items[0] for _, items in results if len(items) == 1]
    is_single = len(objects) == len(frames)
    return Report(
        {
            "background": all(ground == motion.background for ground, _ in results),
            "count": is_single,
            "colour": is_single and all(items.colour == motion.thing.colour for items in objects),
            "shape": is_single and all(items.shape == motion.thing.shape for items in objects),
            "size": is_single and _keeps_size(objects),
            "direction": is_single and _moves(objects, motion.direction),
        }
    )


def _keeps_size(objects: list[DetectedObject]) -> bool:
    extents = [item.extent for item in objects]
    return max(extents) <= MAX_GROWTH * min(extents)


def _moves(objects: list[DetectedObject], direction: str) -> bool:
    """Return whether the object moves far enough, in this direction, and steadily."""
    ahead = np.array(VECTORS[direction])
    centres = np.array([(item.x, item.y) for item in objects])
    along, across = centres @ ahead, centres @ ahead[::-1]
    travel, steps = along[-1] - along[0], np.diff(along)
    return bool(
        travel >= MIN_TRAVEL
        and np.ptp(across) <= MAX_DRIFT * travel
        and steps.min() >= -MAX_RETREAT
        and steps.max() <= MAX_LEAP * travel
    )
