"""Canny edge detector for edge ControlNets: white edges on black.

Source: Canny 1986, as implemented in OpenCV (`cv2.Canny` with a 3 x 3 aperture and the L1 norm),
with the thresholds 100 and 200 of diffusers' and ComfyUI's examples.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int, UInt8

LOW, HIGH = 100, 200
"""Gradient thresholds of hysteresis: pixels above `HIGH` are edges, pixels above `LOW` only if
connected to an edge."""
_TAN = 0.4142135623730951
"""Tangent of 22.5 degrees, the boundary between two quantized directions."""

Gradient = Int[np.ndarray, "height width"]
PixelMask = Bool[np.ndarray, "height width"]


def canny(
    pixels: UInt8[np.ndarray, "height width 3"], low: int = LOW, high: int = HIGH
) -> UInt8[np.ndarray, "height width 3"]:
    """Detect an image's edges: 255 for edges, 0 elsewhere, equal in all channels."""
    across, down = _strongest(pixels)
    size = np.abs(across) + np.abs(down)
    thin = _is_ridge(across, down, size) & (size > low)
    edges = _connected(thin & (size > high), thin)
    return np.repeat((edges * np.uint8(255))[..., None], 3, axis=-1)


def _strongest(pixels: UInt8[np.ndarray, "height width 3"]) -> tuple[Gradient, Gradient]:
    """Return Sobel gradients of the channel with the largest gradient, per pixel."""
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


def _is_ridge(across: Gradient, down: Gradient, size: Gradient) -> PixelMask:
    """Return where a gradient is a local maximum along its own quantized direction."""
    width, height = np.abs(across), np.abs(down)
    padded = np.pad(size, 1)

    def at(row: int, column: int) -> Gradient:
        rows, columns = size.shape
        return padded[1 + row : 1 + row + rows, 1 + column : 1 + column + columns]

    level = (size > at(0, -1)) & (size >= at(0, 1))
    upright = (size > at(-1, 0)) & (size >= at(1, 0))
    falling = (size > at(-1, -1)) & (size > at(1, 1))
    rising = (size > at(-1, 1)) & (size > at(1, -1))
    diagonal = np.where((across ^ down) < 0, rising, falling)
    is_level, is_upright = height < _TAN * width, height > (2 + _TAN) * width
    return np.where(is_level, level, np.where(is_upright, upright, diagonal))


def _connected(sure: PixelMask, possible: PixelMask) -> PixelMask:
    """Return the sure pixels, and the possible pixels connected to them (hysteresis)."""
    result, fresh = sure.copy(), sure
    while fresh.any():
        padded = np.pad(fresh, 1)
        rows = padded[:-2] | padded[1:-1] | padded[2:]
        fresh = (rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]) & possible & ~result
        result |= fresh
    return result
