"""Overlap of the objects in two images of scenes."""

from __future__ import annotations

import numpy as np

from lab.demo.world.checker import ground_of, nearest_colours
from lab.demo.world.vocabulary import COLOURS


def overlap(drawing: np.ndarray, original: np.ndarray) -> float:
    """Return the intersection over union of all objects; 0 if an image has no background.

    Args:
        drawing, original: uint8 [height, width, 3].
    """
    colours = [nearest_colours(pixels, COLOURS) for pixels in (drawing, original)]
    grounds = [ground_of(indices) for indices in colours]
    if None in grounds:
        return 0.0
    first, second = (indices != ground for indices, ground in zip(colours, grounds, strict=True))
    return float((first & second).sum() / max(1, (first | second).sum()))
