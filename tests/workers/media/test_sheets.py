"""Thumbnails and sprite sheets of videos."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from workers.media.image import sheets_of


def frames(count: int, height: int, width: int) -> np.ndarray:
    """Return frames of increasing brightness."""
    levels = np.linspace(0, 255, count).astype(np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (count, height, width, 3)).copy()


def sheets(pixels: np.ndarray) -> tuple[Image.Image, Image.Image]:
    files = sheets_of(pixels)
    thumbnail, sheet = (Image.open(io.BytesIO(files[name])) for name in files)
    assert [*files] == ["thumbnail", "spritesheet"] and thumbnail.format == "WEBP"
    return thumbnail, sheet


@pytest.mark.parametrize(
    ("count", "tiles"), [(1, (1, 1)), (3, (3, 1)), (5, (4, 2)), (16, (4, 4)), (81, (4, 4))]
)
def test_sheet_is_a_grid_of_ordered_frames(count: int, tiles: tuple[int, int]) -> None:
    _, sheet = sheets(frames(count, 32, 64))
    assert sheet.size == (64 * tiles[0], 32 * tiles[1])
    row = (count - 1 if count < 16 else 15) // 4
    column = (count - 1 if count < 16 else 15) % 4
    last = np.asarray(sheet)[32 * row + 16, 64 * column + 32]
    # Levels of 255; the encoder is lossy.
    assert np.all(last >= (250 if count > 1 else 0))
    assert np.all(np.asarray(sheet)[16, 32] <= 5)


def test_large_frames_are_made_small() -> None:
    thumbnail, sheet = sheets(frames(2, 480, 832))
    assert thumbnail.size == (512, 295)
    assert sheet.size == (2 * 192, 111)
