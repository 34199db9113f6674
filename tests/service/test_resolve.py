"""Defaults, tasks and steps of a request against a model."""

from __future__ import annotations

import pytest

from models.spec import ModelSpec
from service.errors import Invalid
from service.resolve import DRAWN_SEEDS, denoising_steps, resolve
from service.schemas import GenerateRequest
from service.settings import LimitSettings
from tests.service.standin import SPEC

LIMITS = LimitSettings()
VIDEO = SPEC.model_copy(
    update={
        "tasks": ("text-to-video", "image-to-video"),
        "fields": SPEC.fields | {"num_frames"},
        "defaults": {**SPEC.defaults, "num_frames": 5},
    }
)


def resolved(spec: ModelSpec = SPEC, **fields: object):  # type: ignore[no-untyped-def]
    return resolve(GenerateRequest.model_validate({"prompt": "a cat"} | fields), spec, LIMITS)


@pytest.mark.parametrize(
    ("steps", "strength", "run"),
    [(20, 1.0, 20), (20, 0.6, 12), (4, 0.6, 3), (10, 0.05, 1), (50, 0.3, 15), (10, 1e-30, 0)],
)
def test_steps_that_run(steps: int, strength: float, run: int) -> None:
    """As diffusers' get_timesteps has it: steps minus the whole part of what is skipped."""
    assert denoising_steps(steps, strength) == run


def test_steps_count_over_all_pictures() -> None:
    assert resolved(num_images=3, num_inference_steps=5).steps == 15
    assert resolved(num_images=2, image="x", strength=0.5).steps == 4


def test_a_drawn_seed_is_one_that_every_reader_can_hold() -> None:
    seeds = {resolved().fields["seed"] for _ in range(20)}
    assert len(seeds) > 1 and max(seeds) < DRAWN_SEEDS


def test_strength_is_there_only_with_a_picture() -> None:
    assert "strength" not in resolved().fields
    assert resolved(image="x").fields["strength"] == 0.6
    assert (resolved().task, resolved(image="x").task) == ("text-to-image", "image-to-image")


def test_sigmas_decide_the_steps() -> None:
    assert resolved(sigmas=[1.0, 0.5, 0.25]).fields["num_inference_steps"] == 3


def test_a_video_model_makes_videos() -> None:
    assert resolved(VIDEO).task == "text-to-video"
    assert resolved(VIDEO, image="x").task == "image-to-video"
    assert resolved(VIDEO).output["format"] == "mp4"
    assert resolved(VIDEO, output={"format": "png"}).output["format"] == "png"


def test_settings_tighten_a_model_s_limits() -> None:
    tight = LimitSettings(max_side_px=64, max_steps=2, max_images=1, max_prompt_chars=3)
    request = GenerateRequest.model_validate({"prompt": "a cat", "num_images": 2})
    with pytest.raises(Invalid) as error:
        resolve(request, SPEC, tight)
    named = {error.field for error in error.value.errors}
    assert named == {"prompt", "width", "num_inference_steps", "num_images"}


def test_a_task_that_the_model_does_not_do_is_named() -> None:
    only_text = SPEC.model_copy(update={"tasks": ("text-to-image",)})
    with pytest.raises(Invalid, match="does text-to-image, not image-to-image"):
        resolved(only_text, image="x")
