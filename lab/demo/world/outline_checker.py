"""Checks an image of outlined shapes against its prompt.

Each outline is filled up to the middle of its stroke, and its interior must have the background's
colour. The filled image is then passed to the checker of solid shapes.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from lab.demo.world.checker import Report, check, ground_of, nearest_colours, palette_of
from lab.demo.world.vocabulary import Scene

MIN_HOLLOW = 0.1
"""Minimum fraction of the filled shape with the background's colour; small crosses
enclose little."""
GAP_PX = 2
"""Half the maximum gap of an outline that is closed before filling."""
INSET_PX = 2
"""Distance from a stroke's outer edge to its middle."""


def check_outlines(pixels: np.ndarray, prompt: str) -> Report:
    """Check an image of outlines, uint8 [height, width, 3], against its prompt.

    Raises:
        ValueError: the prompt is not one of the demo's sentences.
    """
    scene = Scene.parse(prompt)
    palette = palette_of(scene)
    colours = nearest_colours(pixels, palette)
    ground, filled, hollow = ground_of(colours), pixels.copy(), []
    for thing in scene.things:
        enclosed = _enclosed(colours == list(palette).index(thing.colour))
        hollow.append((enclosed & (colours == ground)).sum() >= MIN_HOLLOW * max(1, enclosed.sum()))
        filled[enclosed] = palette[scene.background]
        filled[ndimage.binary_erosion(enclosed, iterations=INSET_PX)] = palette[thing.colour]
    return Report({"outline": all(hollow), **check(filled, prompt).criteria})


def _enclosed(stroke: np.ndarray) -> np.ndarray:
    """Return the mask of a stroke and its interior."""
    closed = ndimage.binary_closing(np.pad(stroke, GAP_PX), iterations=GAP_PX)
    inner = slice(GAP_PX, -GAP_PX)
    return np.asarray(ndimage.binary_fill_holes(closed)[inner, inner])
