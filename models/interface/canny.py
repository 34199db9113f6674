"""Canny's edges of an image, as ControlNets for edges were trained on: white on black.

Source: Canny 1986, in OpenCV's reading (`cv2.Canny` with a 3 x 3 aperture and the L1 norm), with
the thresholds 100 and 200 that diffusers' and ComfyUI's examples have.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int, UInt8

LOW, HIGH = 100, 200
"""Gradients from which a place may be an edge, and from which it is one by itself."""
_TAN = 0.4142135623730951
"""Tangent of 22.5 degrees, at which a gradient is between two directions."""

Gradient = Int[np.ndarray, "height width"]
Places = Bool[np.ndarray, "height width"]


def canny(
    pixels: UInt8[np.ndarray, "height width 3"], low: int = LOW, high: int = HIGH
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw an image's edges: 255 there, 0 elsewhere, the same in all colours."""
    across, down = _strongest(pixels)
    size = np.abs(across) + np.abs(down)
    thin = _is_ridge(across, down, size) & (size > low)
    edges = _connected(thin & (size > high), thin)
    return np.repeat((edges * np.uint8(255))[..., None], 3, axis=-1)


def _strongest(pixels: UInt8[np.ndarray, "height width 3"]) -> tuple[Gradient, Gradient]:
    """Return Sobel's gradients of the colour in which they are largest, at each place."""
    padded = np.pad(pixels.astype(np.int32), ((1, 1), (1, 1), (0, 0)), mode="edge")
    rows = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    across = rows[:, 2:] - rows[:, :-2]
    columns = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    down = columns[2:] - columns[:-2]
    colour = (np.abs(across) + np.abs(down)).argmax(axis=-1)[..., None]
    return (
        np.take_along_axis(across, colour, axis=-1)[..., 0],
        np.take_along_axis(down, colour, axis=-1)[..., 0],
    )


def _is_ridge(across: Gradient, down: Gradient, size: Gradient) -> Places:
    """Return where a gradient is the largest along its own direction, of eight."""
    width, height = np.abs(across), np.abs(down)
    around = np.pad(size, 1)

    def at(row: int, column: int) -> Gradient:
        rows, columns = size.shape
        return around[1 + row : 1 + row + rows, 1 + column : 1 + column + columns]

    level = (size > at(0, -1)) & (size >= at(0, 1))
    upright = (size > at(-1, 0)) & (size >= at(1, 0))
    falling = (size > at(-1, -1)) & (size > at(1, 1))
    rising = (size > at(-1, 1)) & (size > at(1, -1))
    diagonal = np.where((across ^ down) < 0, rising, falling)
    is_level, is_upright = height < _TAN * width, height > (2 + _TAN) * width
    return np.where(is_level, level, np.where(is_upright, upright, diagonal))


def _connected(sure: Places, possible: Places) -> Places:
    """Return what is sure, and what is possible and touches it over others that are possible."""
    found, fresh = sure.copy(), sure
    while fresh.any():
        padded = np.pad(fresh, 1)
        rows = padded[:-2] | padded[1:-1] | padded[2:]
        fresh = (rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]) & possible & ~found
        found |= fresh
    return found
