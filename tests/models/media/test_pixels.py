"""Pixels with alpha, on white."""

from __future__ import annotations

import numpy as np
from PIL import Image

from models.media import image_files
from models.media.pixels import on_white


def test_pixels_on_white_are_as_pillows() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 4), dtype=np.uint8)
    expected = np.asarray(image_files.on_white(Image.fromarray(pixels)), int)
    assert np.abs(on_white(pixels) - expected).max() <= 1
    pixels[..., 3] = 255
    np.testing.assert_array_equal(on_white(pixels), pixels[..., :3])
