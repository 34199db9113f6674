"""Measure how far two pictures of scenes show their things in the same places."""

from __future__ import annotations

import numpy as np

from models.demo.world.checker import ground_of, nearest_colours
from models.demo.world.vocabulary import COLOURS


def overlap(drawing: np.ndarray, original: np.ndarray) -> float:
    """Return the intersection over union of what is not ground; 0 where one has no ground.

    Args:
        drawing, original: uint8 [height, width, 3].
    """
    colours = [nearest_colours(pixels, COLOURS) for pixels in (drawing, original)]
    grounds = [ground_of(one) for one in colours]
    if None in grounds:
        return 0.0
    first, second = (one != ground for one, ground in zip(colours, grounds, strict=True))
    return float((first & second).sum() / max(1, (first | second).sum()))
