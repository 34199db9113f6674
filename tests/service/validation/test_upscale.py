"""Validation of a request's `upscale` against its model's upscalers and the limits."""

from __future__ import annotations

import pytest

from models.spec.model_spec import ModelSpec
from models.spec.upscalers import Upscaler
from service.settings.limits import LimitSettings
from tests.service.standin import SPEC, VIDEO
from tests.service.validation.test_resolved_fields import resolved, wrong_fields
from workers.loading.upscalers import with_upscalers

ONE = with_upscalers(SPEC, {"photo": Upscaler(scale=4, tile=64)})
TWO = with_upscalers(SPEC, {**ONE.upscalers, "anime": Upscaler(scale=2, tile=64)})


@pytest.mark.parametrize(
    ("spec", "asked", "found"),
    [
        (ONE, {}, ("photo", 4)),
        (ONE, {"name": "photo", "scale": 1.5}, ("photo", 1.5)),
        (ONE, {"scale": 2}, ("photo", 2)),
        (TWO, {"name": "anime"}, ("anime", 2)),
        (TWO, {"name": "anime", "scale": 1}, ("anime", 1)),
    ],
)
def test_name_and_scale_are_filled_in(
    spec: ModelSpec, asked: dict[str, object], found: tuple[str, float]
) -> None:
    upscale = resolved(spec, upscale=asked).fields["upscale"]
    assert (upscale["name"], upscale["scale"]) == found


def test_no_upscaling_by_default() -> None:
    assert "upscale" not in resolved(ONE).fields


@pytest.mark.parametrize(
    ("spec", "asked", "field", "said"),
    [
        (SPEC, {"name": "photo"}, "upscale", "has no upscaler; its operator can add one"),
        (VIDEO, {"name": "photo"}, "upscale", "generates videos, which are not upscaled"),
        (TWO, {}, "upscale.name", "must be anime or photo"),
        (ONE, {"name": "other"}, "upscale.name", "must be photo"),
        (TWO, {"name": "anime", "scale": 2.5}, "upscale.scale", "must be 2 at most"),
    ],
)
def test_invalid_upscale_is_named(
    spec: ModelSpec, asked: dict[str, object], field: str, said: str
) -> None:
    errors = wrong_fields(spec, upscale=asked)
    assert errors.keys() == {field}
    assert said in errors[field]


def test_outputs_have_a_size_limit() -> None:
    limits = LimitSettings(max_upscaled_pixels=96 * 64 * 4)
    errors = wrong_fields(ONE, limits, upscale={"scale": 2.1})
    assert errors == {"upscale.scale": "makes 202 x 134 pixels; the maximum is 24576"}
    spec = with_upscalers(SPEC, {"photo": Upscaler(scale=16, tile=64)})
    large = spec.model_copy(
        update={"limits": SPEC.limits.model_copy(update={"max_side_px": 2048, "max_pixels": 2**22})}
    )
    wide = wrong_fields(large, upscale={"name": "photo"}, width=2048, height=32)
    assert "the maximum is 16383" in wide["upscale.scale"]


def test_the_size_of_an_image_is_waited_for() -> None:
    """Until the image is read, its size is unknown; the model's default may be larger."""
    sized = ONE.model_copy(update={"sized_by_image": ("image-to-image",)})
    limits = LimitSettings(max_upscaled_pixels=96 * 64 * 4)
    fields = {"image": "x", "upscale": {"scale": 2.1}}
    assert resolved(sized, limits, **fields).task == "image-to-image"
    assert wrong_fields(sized, limits, width=96, height=64, **fields).keys() == {"upscale.scale"}
