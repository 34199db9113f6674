"""Sizes in OpenAI's API: parsing, and the nearest supported size."""

from __future__ import annotations

import pytest

from models.spec.model_spec import Size, Sizes
from service.errors.problems import Invalid
from service.routes.compat.nearest_size import nearest
from service.routes.compat.openai.field_values import sides_of
from service.settings.limits import LimitSettings
from tests.service.standin import SPEC

LIMITS = LimitSettings()


@pytest.mark.parametrize("size", ["", "64", "64x", "x64", "64/64", "64  x64", "-1x64", "64x64x64"])
def test_invalid_size_is_rejected(size: str) -> None:
    with pytest.raises(Invalid):
        sides_of(size)


@pytest.mark.parametrize("size", ["64x96", "64X96", "64*96", "64\u00d796", "64 x 96"])
def test_sizes_have_several_signs(size: str) -> None:
    assert sides_of(size) == {"width": 64, "height": 96}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((96, 64), (96, 64)),  # supported
        ((100, 100), (96, 96)),
        ((1024, 1024), (128, 128)),
        ((1000, 500), (176, 80)),
        ((16, 16), (32, 32)),
        ((5000, 10), (256, 32)),
        ((10, 5000), (32, 256)),
    ],
)
def test_the_nearest_size_is_within_the_bounds(
    given: tuple[int, int], found: tuple[int, int]
) -> None:
    assert nearest(SPEC, LIMITS, *given) == found


def test_every_nearest_size_is_served() -> None:
    limits = SPEC.limits
    for width in range(1, 700, 13):
        for height in range(1, 700, 17):
            wide, high = nearest(SPEC, LIMITS, width, height)
            assert wide * high <= limits.max_pixels
            for side in (wide, high):
                assert limits.min_side_px <= side <= limits.max_side_px
                assert side % limits.size_multiple_px == 0


def test_nearest_listed_size_is_chosen_by_shape_then_area() -> None:
    listed = (Size(width=512, height=512), Size(width=1024, height=1024), Size(width=64, height=96))
    spec = SPEC.model_copy(update={"sizes": Sizes(mode="listed", listed=listed)})
    assert nearest(spec, LIMITS, 900, 900) == (1024, 1024)
    assert nearest(spec, LIMITS, 400, 600) == (64, 96)
