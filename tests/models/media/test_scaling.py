"""Target sizes of scaled images."""

from __future__ import annotations

import pytest
from diffusers.pipelines.flux2.image_processor import Flux2ImageProcessor
from PIL import Image

from models.media.scaling import within_pixels

MAX_PIXELS = 1 << 20


@pytest.mark.parametrize("size", [(1025, 1024), (4000, 3000), (1501, 1203), (512, 4096)])
def test_larger_ones_are_diffusers_size(size: tuple[int, int]) -> None:
    scaled = Flux2ImageProcessor._resize_if_exceeds_area(Image.new("L", size), MAX_PIXELS)
    assert within_pixels(size, MAX_PIXELS) == scaled.size != size


@pytest.mark.parametrize(
    ("size", "most"), [((1024, 1024), MAX_PIXELS), ((9, 7), MAX_PIXELS), ((9, 7), None)]
)
def test_small_images_are_not_scaled(size: tuple[int, int], most: int | None) -> None:
    assert within_pixels(size, most) == size
