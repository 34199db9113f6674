"""Read a picture of outlines and say which of the things that its prompt names are right.

Each outline is filled first, up to the middle of its stroke; what it encloses must be ground. The
rest is the checker of solid shapes.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from models.demo.world.checker import Report, check, ground_of, nearest_colours, palette_of
from models.demo.world.vocabulary import Scene

MIN_HOLLOW = 0.1
"""Minimum share of the filled shape that is ground: small crosses enclose little."""
GAP_PX = 2
"""Half the widest gap of an outline that is bridged before it is filled."""
INSET_PX = 2
"""Distance from the outer edge of a stroke to its middle."""


def check_outlines(pixels: np.ndarray, prompt: str) -> Report:
    """Hold a picture, uint8 [height, width, 3], against its prompt.

    Raises:
        ValueError: the prompt is not one of the demo's sentences.
    """
    scene = Scene.parse(prompt)
    palette = palette_of(scene)
    colours = nearest_colours(pixels, palette)
    ground, filled, hollow = ground_of(colours), pixels.copy(), []
    for thing in scene.things:
        whole = _enclosed(colours == list(palette).index(thing.colour))
        hollow.append((whole & (colours == ground)).sum() >= MIN_HOLLOW * max(1, whole.sum()))
        filled[whole] = palette[scene.background]
        filled[ndimage.binary_erosion(whole, iterations=INSET_PX)] = palette[thing.colour]
    return Report({"outline": all(hollow), **check(filled, prompt).criteria})


def _enclosed(stroke: np.ndarray) -> np.ndarray:
    """Return a stroke and what it encloses."""
    closed = ndimage.binary_closing(np.pad(stroke, GAP_PX), iterations=GAP_PX)
    inner = slice(GAP_PX, -GAP_PX)
    return np.asarray(ndimage.binary_fill_holes(closed)[inner, inner])
