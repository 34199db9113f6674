"""Validation of presets that run the first steps at a smaller size."""

from __future__ import annotations

from typing import Any

import pytest

from models.spec.quality_presets import GuidanceInterval, Progressive, Quality
from tests.service.standin import SPEC
from tests.service.validation.test_resolved_fields import resolved

GROWS = Progressive(scale=0.5, until=0.5)
GROWING = SPEC.model_copy(
    update={
        "fields": SPEC.fields | {"quality"},
        "qualities": {
            "grows": Quality(progressive=GROWS),
            "guided": Quality(progressive=GROWS, guidance=GuidanceInterval(stop=0.5)),
        },
    }
)


def test_progressive_steps_count_every_image() -> None:
    result = resolved(GROWING, quality="grows", num_inference_steps=7, num_images=2)
    assert (result.steps, result.warnings) == (14, [])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"image": "x"}, "has no effect: this request has images"),
        ({"width": 64, "height": 64, "hires": {}}, "has no effect: hires fix sets the sizes"),
        ({"num_inference_steps": 1}, "has no effect: its share of the steps"),
        ({"quality": "guided", "image": "x"}, "has no smaller steps: this request has images"),
    ],
)
def test_ineffective_preset_is_a_warning(fields: dict[str, Any], said: str) -> None:
    (warning,) = resolved(GROWING, **{"quality": "grows"} | fields).warnings
    assert warning.field == "quality" and said in warning.message


def test_default_preset_gives_no_warning() -> None:
    """The client did not request the preset."""
    spec = GROWING.model_copy(update={"defaults": {**SPEC.defaults, "quality": "grows"}})
    assert resolved(spec, image="x").warnings == []
