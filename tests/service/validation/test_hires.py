"""Validation of a request's `hires` field: defaults, steps of both passes, and errors."""

from __future__ import annotations

from typing import Any

import pytest

from models.spec.hires import passes
from models.spec.model_spec import ModelSpec, Size, Sizes
from models.spec.upscalers import Enlarger, Upscaler
from service.settings.limits import LimitSettings
from service.validation.hires import DEFAULT_HIRES_NOTE
from tests.service.standin import SPEC, VIDEO
from tests.service.validation.test_resolved_fields import INPAINTING, resolved, wrong_fields
from workers.loading.upscalers import with_upscalers

WITH_UPSCALER = with_upscalers(SPEC, {"photo": Upscaler(scale=4, tile=64)})
ROUNDED_DOWN = SPEC.model_copy(update={"strength_rounds": "down"})
ROOMY = SPEC.model_copy(update={"limits": SPEC.limits.model_copy(update={"max_pixels": 2**20})})
SMALL = {"width": 64, "height": 48}


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({}, (128, 96)),
        ({"scale": 1.5}, (96, 80)),  # 72 is between two multiples of 16: the larger one
        ({"scale": 1}, (64, 48)),
        ({"width": 128}, (128, 96)),
        ({"height": 96}, (128, 96)),
        ({"width": 96, "height": 80}, (96, 80)),
        ({"width": 96, "height": 64}, (96, 64)),
    ],
)
def test_the_targets_size(asked: dict[str, Any], size: tuple[int, int]) -> None:
    hires = resolved(SPEC, **SMALL, hires=asked).fields["hires"]
    assert (hires["width"], hires["height"]) == size


def test_the_rest_is_filled_in() -> None:
    request = resolved(SPEC, **SMALL, num_inference_steps=10, hires={})
    assert request.fields["hires"] == {
        "width": 128,
        "height": 96,
        "upscaler": "latent",
        "strength": 0.7,
        "num_inference_steps": 10,
    }
    assert "hires" not in resolved(SPEC).fields


@pytest.mark.parametrize(
    ("spec", "hires", "steps"),
    [
        (SPEC, {}, 10 + 7),
        (SPEC, {"strength": 0.45}, 10 + 5),
        (ROUNDED_DOWN, {"strength": 0.45}, 10 + 4),
        (SPEC, {"num_inference_steps": 20, "strength": 0.5}, 10 + 10),
        (SPEC, {"strength": 1}, 10 + 10),
    ],
)
def test_steps_of_both_passes_count(spec: ModelSpec, hires: dict[str, Any], steps: int) -> None:
    request = resolved(spec, **SMALL, num_images=2, num_inference_steps=10, hires=hires)
    assert request.steps == 2 * steps


def test_first_pass_may_start_from_an_image() -> None:
    request = resolved(
        SPEC, **SMALL, image="x", strength=0.5, num_inference_steps=10, hires={"strength": 0.3}
    )
    assert (request.task, request.steps) == ("image-to-image", 5 + 3)


@pytest.mark.parametrize(
    ("spec", "fields", "field", "said"),
    [
        (VIDEO, {}, "hires", "does not support image to image with a strength"),
        (
            SPEC.model_copy(update={"fields": SPEC.fields - {"strength", "hires"}}),
            {},
            "hires",
            "does not support image to image",
        ),
        (INPAINTING, {"image": "x", "mask_image": "x"}, "hires", "regenerates the whole image"),
        (SPEC, {"hires": {"upscaler": "photo"}}, "hires.upscaler", "must be latent or lanczos"),
        (
            WITH_UPSCALER,
            {"hires": {"upscaler": "other"}},
            "hires.upscaler",
            "must be latent or lanczos or photo",
        ),
        (ROOMY, {"hires": {"scale": 8}}, "hires.scale", "must be 32 to 256 pixels"),
        (ROOMY, {"hires": {"width": 512}}, "hires.width", "must be 32 to 256 pixels"),
        (SPEC, {"hires": {"height": 100}}, "hires.height", "multiple of 16"),
        (SPEC, {"hires": {"scale": 3}}, "hires.scale", "must be 16384 pixels at most"),
        (SPEC, {"hires": {"width": 48}}, "hires.width", "must be at least 64"),
        (
            SPEC,
            {"hires": {"width": 128, "height": 128}},
            "hires.height",
            "has other proportions than the first pass",
        ),
        (SPEC, {"hires": {"num_inference_steps": 51}}, "hires.num_inference_steps", "50 at most"),
        (
            ROUNDED_DOWN,
            {"hires": {"strength": 0.1}},
            "hires.strength",
            "leaves no step of 4",
        ),
        (SPEC, {"sigmas": [1.0, 0.5]}, "hires", "leave it out, or sigmas"),
    ],
)
def test_invalid_field_is_named(
    spec: ModelSpec, fields: dict[str, Any], field: str, said: str
) -> None:
    errors = wrong_fields(spec, **{**SMALL, "hires": {}, **fields})
    assert errors.keys() == {field}
    assert said in errors[field]


OWN = Enlarger(scale=2, second={"num_inference_steps": 3, "sigmas": (0.9, 0.5, 0.2)})
TWO_STAGES = VIDEO.model_validate(
    {
        **VIDEO.model_dump(),
        "enlargers": {"own": OWN.model_dump()},
        "fields": [*VIDEO.fields, "sigmas"],
    }
)


def test_an_upscaler_of_the_models_own_latents_is_the_default() -> None:
    """The upscaler's second pass has its own steps, independent of the first pass."""
    request = resolved(TWO_STAGES, **SMALL, sigmas=[1.0, 0.5], num_images=2, hires={})
    assert request.fields["hires"] == {"width": 128, "height": 96, "upscaler": "own"}
    assert (request.task, request.steps) == ("text-to-video", 2 * (2 + 3))
    first, second = passes(request.fields, TWO_STAGES)
    assert second is not None
    assert (first["sigmas"], second["sigmas"]) == ([1.0, 0.5], (0.9, 0.5, 0.2))
    assert (second["width"], second["num_inference_steps"]) == (128, 3)
    assert not {"strength", "upscaler", "hires", "image"} & second.keys()
    conditioned = resolved(TWO_STAGES, **SMALL, image="x", hires={"upscaler": "own", "scale": 2})
    assert conditioned.task == "image-to-video"
    assert passes(conditioned.fields, TWO_STAGES)[1]["image"] == "x"


@pytest.mark.parametrize(
    ("hires", "field", "said"),
    [
        ({"upscaler": "latent"}, "hires.upscaler", "must be own"),
        ({"scale": 1.5}, "hires.scale", "must be 128 x 96: the upscaler 'own' makes it 2"),
        ({"width": 96}, "hires.width", "must be 128 x 96"),
        ({"strength": 0.5}, "hires.strength", "has its own second pass"),
        ({"num_inference_steps": 4}, "hires.num_inference_steps", "has its own second pass"),
    ],
)
def test_unsupported_options_of_a_latent_upscaler(
    hires: dict[str, Any], field: str, said: str
) -> None:
    errors = wrong_fields(TWO_STAGES, **SMALL, hires=hires)
    assert errors.keys() == {field}
    assert said in errors[field]


def test_target_of_a_latent_upscaler_is_limited() -> None:
    errors = wrong_fields(TWO_STAGES, width=128, height=96, hires={})
    assert "must be 16384 pixels at most" in errors["hires.scale"]


def test_second_pass_of_a_video_is_limited_over_all_frames() -> None:
    limits = LimitSettings(max_clip_pixels=128 * 96 * 5)
    fields = {**SMALL, "num_frames": 5, "hires": {}}
    assert resolved(TWO_STAGES, limits, **fields).fields["hires"]["width"] == 128
    errors = wrong_fields(TWO_STAGES, limits, **{**fields, "num_frames": 9})
    assert errors.keys() == {"num_frames"}
    assert "the second pass's" in errors["num_frames"]


def test_model_without_hires_rejects_it_with_an_upscaler() -> None:
    video = with_upscalers(VIDEO, {"photo": Upscaler(scale=4, tile=64)})
    fields = {"hires": {"scale": 2}, "upscale": {"name": "photo"}}
    assert "hires" in wrong_fields(video, **SMALL, **fields)


def test_upscalers_of_the_model_are_taken() -> None:
    fields = resolved(WITH_UPSCALER, **SMALL, hires={"upscaler": "photo"}).fields
    assert fields["hires"]["upscaler"] == "photo"


def test_a_target_has_to_be_listed_where_sizes_are() -> None:
    listed = (Size(**SMALL), Size(width=128, height=96))
    spec = SPEC.model_copy(update={"sizes": Sizes(mode="listed", listed=listed)})
    assert resolved(spec, **SMALL, hires={"scale": 2}).steps == 4 + 3
    errors = wrong_fields(spec, **SMALL, hires={"scale": 1.5})
    assert errors.keys() == {"hires.scale"}
    assert "supports only these sizes" in errors["hires.scale"]


def test_limits_count_the_steps_that_run() -> None:
    limits = LimitSettings(max_steps=20)
    fields = {**SMALL, "num_inference_steps": 10}
    hires = {"strength": 0.5, "num_inference_steps": 40}
    assert resolved(SPEC, limits, **fields, hires=hires).steps == 10 + 20
    errors = wrong_fields(SPEC, limits, **fields, hires={**hires, "num_inference_steps": 42})
    assert errors == {
        "hires.num_inference_steps": "must leave at most 20 steps to run; lower it, or strength"
    }


def test_a_target_may_be_listed_with_another_length_of_the_text() -> None:
    listed = (Size(**SMALL), Size(width=128, height=96, max_sequence_length=64))
    spec = SPEC.model_copy(update={"sizes": Sizes(mode="listed", listed=listed)})
    assert resolved(spec, **SMALL, max_sequence_length=64, hires={"scale": 2}).steps == 4 + 3
    errors = wrong_fields(spec, **SMALL, max_sequence_length=128, hires={"scale": 2})
    message = "must be 64 with this size, the second pass's"
    assert errors == {"max_sequence_length": message}
    alone = {"width": 128, "height": 96, "max_sequence_length": 128, "hires": {"scale": 1}}
    assert wrong_fields(spec, **alone) == {"max_sequence_length": "must be 64 with this size"}


def test_model_default_fills_open_fields() -> None:
    defaults = {**SPEC.defaults, "hires": {"scale": 1.5}}
    spec = SPEC.model_copy(
        update={
            "defaults": defaults,
            "tasks": (*SPEC.tasks, "inpainting"),
            "fields": SPEC.fields | {"mask_image"},
        }
    )
    hires = resolved(spec, **SMALL).fields["hires"]
    assert (hires["width"], hires["height"], hires["upscaler"]) == (96, 80, "latent")
    assert resolved(spec, **SMALL, hires={"scale": 1}).fields["hires"]["width"] == 64
    errors = wrong_fields(spec, width=128, height=128)
    message = "width times height must be 16384 pixels at most"
    assert errors == {"hires.scale": message + DEFAULT_HIRES_NOTE}
    assert wrong_fields(spec, width=128, height=128, hires={"scale": 1.5}) == {
        "hires.scale": message
    }
    assert resolved(spec, width=128, height=128, hires=None).steps == 4
    masked = resolved(spec, **SMALL, image="x", mask_image="x")
    assert "hires" not in masked.fields, "inpainting runs in a single pass"
    assert "hires" not in resolved(spec, **SMALL, sigmas=[1.0, 0.5]).fields


def test_upscaling_applies_to_the_second_pass() -> None:
    limits = LimitSettings(max_upscaled_pixels=128 * 96 * 4)
    fields = {**SMALL, "hires": {}, "upscale": {"name": "photo", "scale": 2.1}}
    errors = wrong_fields(WITH_UPSCALER, limits, **fields)
    assert errors == {"upscale.scale": "makes 269 x 202 pixels; the maximum is 49152"}


def test_the_size_of_an_image_is_waited_for() -> None:
    """Until the image is read, its size is unknown; the model's default may be larger."""
    spec = SPEC.model_copy(update={"sized_by_image": ("image-to-image",)})
    fields = {"image": "x", "hires": {"scale": 2.1}}
    assert resolved(spec, **fields).task == "image-to-image"
    assert wrong_fields(spec, width=96, height=64, **fields).keys() == {"hires.scale"}
