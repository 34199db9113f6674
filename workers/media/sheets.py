"""Small images of a video: a thumbnail of its first frame, and a sprite sheet of all of it."""

from __future__ import annotations

import numpy as np
from PIL import Image

from workers.media import image

FORMAT, QUALITY = "webp", 80
CONTENT_TYPE = image.CONTENT_TYPES[FORMAT]
THUMBNAIL_PX, TILE_PX = 512, 192
"""Longest sides of a thumbnail, and of a frame of a sheet."""
COLUMNS, ROWS = 4, 4
"""Maximum columns and rows of a sheet."""


def sheets_of(frames: np.ndarray) -> dict[str, bytes]:
    """Return the small images of a video by name.

    Args:
        frames: uint8 [frames, height, width, 3].
    """
    return {
        "thumbnail": image.encode(_small(frames[0], THUMBNAIL_PX), FORMAT, QUALITY),
        "spritesheet": image.encode(_sheet(frames), FORMAT, QUALITY),
    }


def _small(frame: np.ndarray, side_px: int) -> np.ndarray:
    """Return the frame, shrunk so that its longest side is at most `side_px`."""
    small = Image.fromarray(frame)
    small.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
    return np.asarray(small)


def _sheet(frames: np.ndarray) -> np.ndarray:
    """Return evenly spaced frames, row by row; the rest of the last row is black."""
    count = min(len(frames), COLUMNS * ROWS)
    chosen = np.linspace(0, len(frames) - 1, count).round().astype(int)
    tiles = [_small(frames[number], TILE_PX) for number in chosen]
    columns = min(count, COLUMNS)
    tiles += [np.zeros_like(tiles[0])] * (-count % columns)
    rows = [np.hstack(tiles[start : start + columns]) for start in range(0, len(tiles), columns)]
    return np.vstack(rows)
