"""SDXL requests: diffusers' defaults, and validation errors that name the field."""

from __future__ import annotations

from typing import Any

import pytest

from models.sdxl.request import SdxlRequest, task_of
from models.spec.request import RequestError, read_request

FIELDS: dict[str, Any] = {
    "prompt": "a cat",
    "seed": 1,
    "width": 64,
    "height": 96,
    "num_inference_steps": 4,
    "guidance_scale": 5.0,
}


def request(**fields: Any) -> SdxlRequest:
    return read_request(SdxlRequest, FIELDS | fields)


def test_second_encoder_defaults_to_the_first_prompt() -> None:
    assert request().texts(1) == ({"prompt": "a cat"}, {"prompt": "a cat"})
    assert request(prompt_2="a dog").texts(1)[1] == {"prompt_2": "a dog"}
    both = request(negative_prompt="rain").texts(2)
    assert both == ({"prompt": "a cat", "negative_prompt": "rain"},) * 2
    first, second = request(negative_prompt_2="snow").texts(2)
    assert first["negative_prompt"] == ""
    assert second == {"prompt": "a cat", "negative_prompt_2": "snow"}


def test_size_conditioning_is_height_first() -> None:
    positive, negative = request().time_ids("text-to-image")
    assert positive == negative == (96, 64, 0, 0, 96, 64)


def test_the_negative_prompts_sizes_follow_the_pipeline_of_the_task() -> None:
    sizes = {"crops_coords_top_left": [1, 2], "negative_crops_coords_top_left": [3, 4]}
    partial = request(**sizes, negative_original_size=[5, 6])
    assert partial.time_ids("text-to-image")[1] == (96, 64, 1, 2, 96, 64)
    assert partial.time_ids("image-to-image")[1] == (5, 6, 1, 2, 96, 64)
    complete = request(**sizes, negative_original_size=[5, 6], negative_target_size=[7, 8])
    assert complete.time_ids("text-to-image")[1] == (5, 6, 3, 4, 7, 8)
    assert complete.time_ids("inpainting")[1] == (5, 6, 1, 2, 7, 8)


def test_input_images_decide_the_task() -> None:
    assert task_of({}) == "text-to-image"
    assert task_of({"image": b""}) == "image-to-image"
    assert task_of({"image": b"", "mask_image": b""}) == "inpainting"
    with pytest.raises(RequestError, match="image: is needed with mask_image"):
        task_of({"mask_image": b""})


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"prompt": None}, "prompt"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"strength": 0.0}, "strength"),
        ({"strength": 1.5}, "strength"),
        ({"eta": 1.5}, "eta"),
        ({"clip_skip": -1}, "clip_skip"),
        ({"timesteps": [9.0, 3.0], "sigmas": [2.0, 0.0]}, "sigmas"),
        ({"target_size": [64]}, "target_size"),
        ({"negative_original_size": [64, -1]}, "negative_original_size"),
    ],
)
def test_a_wrong_value_is_refused_by_its_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as error:
        request(**wrong)
    assert error.value.field == field
