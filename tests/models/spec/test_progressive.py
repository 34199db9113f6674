"""Progressive resolution: passes of an image whose first steps are smaller."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from models.spec.evaluations import Evaluations
from models.spec.model_spec import ALL_QUALITIES, ModelSpec, Size, Sizes
from models.spec.passes import (
    PROGRESSIVE,
    StepRange,
    passes,
    reason_without_effect,
    split_request,
    steps_of,
)
from models.spec.quality_presets import GuidanceInterval, Progressive, Quality
from tests.service.standin import SPEC

GROWS = Quality(progressive=Progressive(scale=0.5, until=0.4))
FAST = Quality(guidance=GuidanceInterval(stop=0.5))
GROWING = SPEC.model_copy(update={"qualities": {"grows": GROWS, "fast": FAST}})
FIELDS: dict[str, Any] = {
    **{"prompt": "a cat", "width": 128, "height": 96, "num_inference_steps": 10, "seed": 3},
    **{"num_images": 1, "quality": "grows"},
}


def listed(*sizes: Size) -> ModelSpec:
    return GROWING.model_copy(update={"sizes": Sizes(mode="listed", listed=sizes)})


def test_progressive_request_splits_into_small_and_full_size_passes() -> None:
    first, second = passes(FIELDS, GROWING)
    assert second is not None
    assert (first["width"], first["height"], first[PROGRESSIVE]) == (
        64,
        48,
        StepRange(0, 4, 128, 96),
    )
    assert (second["width"], second["height"], second[PROGRESSIVE]) == (
        128,
        96,
        StepRange(4, 6, 128, 96),
    )
    assert "image" in second and "image" not in first
    assert (steps_of(first, GROWING), steps_of(second, GROWING)) == (4, 6)
    assert first["seed"] == second["seed"] == 3


@pytest.mark.parametrize(
    ("size", "scale", "small"),
    [
        ((128, 96), 0.6, (80, 64)),  # 76.8 and 57.6, in multiples of 16
        ((64, 64), 0.1, (32, 32)),  # the model's smallest size
        ((256, 32), 0.5, (128, 32)),
    ],
)
def test_sizes_are_supported_by_the_model(
    size: tuple[int, int], scale: float, small: tuple[int, int]
) -> None:
    quality = Quality(progressive=Progressive(scale=scale, until=0.5))
    spec = SPEC.model_copy(update={"qualities": {"grows": quality}})
    first, _ = passes({**FIELDS, "width": size[0], "height": size[1]}, spec)
    assert (first["width"], first["height"]) == small


@pytest.mark.parametrize(
    ("spec", "fields", "why"),
    [
        (GROWING, {"image": "x"}, "has images"),
        (GROWING, {"control": [{"name": "canny", "image": "x"}]}, "has images"),
        (GROWING, {"sigmas": [1.0, 0.5]}, "sets sigmas"),
        (GROWING, {"width": 32, "height": 32}, "no smaller size"),
        (GROWING, {"num_inference_steps": 2}, "less than one"),
        (listed(Size(width=128, height=96)), {}, "64 x 48 is not one of"),
        (GROWING, {"hires": {"width": 256, "height": 192, "upscaler": "latent"}}, "hires fix"),
    ],
)
def test_ineffective_cases_have_a_reason(spec: ModelSpec, fields: dict[str, Any], why: str) -> None:
    assert split_request(FIELDS | fields, spec) is None
    assert why in reason_without_effect(FIELDS | fields, spec)


@pytest.mark.parametrize("quality", ["exact", "fast", None])
def test_other_presets_have_one_pass(quality: str | None) -> None:
    fields = {**FIELDS, "quality": quality}
    assert passes(fields, GROWING) == (fields, None)
    assert reason_without_effect(fields, GROWING) == ""


def test_listed_smaller_size_is_used() -> None:
    assert split_request(FIELDS, listed(Size(width=128, height=96), Size(width=64, height=48)))


def test_hires_fix_keeps_its_passes() -> None:
    hires = {"width": 256, "height": 192, "upscaler": "latent", "strength": 0.5}
    first, second = passes(FIELDS | {"hires": hires | {"num_inference_steps": 4}}, GROWING)
    assert second is not None and PROGRESSIVE not in first
    assert (first["width"], second["width"]) == (128, 256)


def test_previous_release_reads_a_spec_without_progressive_presets() -> None:
    """The last release would reject the optimization; this version reads all presets."""
    written = json.loads(GROWING.model_dump_json())
    assert set(written["qualities"]) == {"fast"}
    assert "progressive" not in written["qualities"]["fast"]
    assert set(written[ALL_QUALITIES]) == {"grows", "fast"}
    assert ModelSpec.model_validate_json(GROWING.model_dump_json()) == GROWING


@pytest.mark.parametrize("options", [{"scale": 1}, {"scale": 0}, {"until": 0}, {"until": 1}])
def test_shares_are_between_zero_and_one(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Progressive(**{"scale": 0.5, "until": 0.5} | options)


def test_scheduler_with_more_evaluations_has_no_smaller_steps() -> None:
    spec = GROWING.model_copy(update={"evaluations": {"heun": Evaluations(per_step=2, more=-1)}})
    fields = {**FIELDS, "scheduler": {"name": "heun"}}
    assert split_request(fields, spec) is None
    assert "more than once in some steps" in reason_without_effect(fields, spec)
    assert split_request({**FIELDS, "scheduler": {"name": "euler"}}, spec) is not None
