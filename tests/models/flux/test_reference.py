"""Sizes of Kontext's reference images, and images below the minimum."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from models.flux.reference import SIDE_PX, SIZES, nearest_size, read_reference
from models.spec.request import RequestError


def file(width: int, height: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(data, "PNG")
    return data.getvalue()


MAX_DEVIATION = 0.014
"""Largest relative difference between the pixel counts that determine the prices of edits."""


def test_every_size_has_about_as_many_pixels() -> None:
    assert all(abs(w * h / SIDE_PX**2 - 1) <= MAX_DEVIATION for w, h in SIZES)


@pytest.mark.parametrize(
    ("sides", "size"),
    [
        ((512, 512), (1024, 1024)),
        ((4000, 3000), (1184, 880)),
        ((10, 5000), (672, 1568)),
        ((300, 200), (1248, 832)),
    ],
)
def test_the_size_of_nearest_ratio_is_taken(sides: tuple[int, int], size: tuple[int, int]) -> None:
    assert nearest_size(*sides) == size


def test_sides_are_whole_tokens() -> None:
    """The image before its ratio is chosen also has whole tokens."""
    assert read_reference(file(300, 200), 64, "image").shape == (832, 1152, 3)


def test_a_checkpoint_of_other_references_has_the_sizes_scaled() -> None:
    shapes = [read_reference(file(*sides), 16, "image", 96).shape for sides in ((90, 90), (20, 90))]
    assert shapes == [(96, 96, 3), (144, 48, 3)]


def test_an_image_below_a_token_is_refused_by_its_field() -> None:
    with pytest.raises(RequestError, match="image: must be at least 16 x 16 pixels"):
        read_reference(file(16, 15), 16, "image")
