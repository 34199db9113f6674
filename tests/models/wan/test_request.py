from __future__ import annotations

from typing import Any

import pytest

from models.spec.request import RequestError, read_request
from models.wan.request import WanRequest

FIELDS: dict[str, Any] = {
    "prompt": "a red circle",
    "seed": 1,
    "width": 80,
    "height": 48,
    "num_frames": 9,
    "num_inference_steps": 4,
    "guidance_scale": 5.0,
    "max_sequence_length": 512,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", None),
        ("seed", None),
        ("max_sequence_length", 513),
        ("max_sequence_length", 0),
        ("num_inference_steps", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as error:
        read_request(WanRequest, FIELDS | {field: value})
    assert error.value.field == field


def test_service_and_file_fields_are_ignored() -> None:
    request = read_request(WanRequest, FIELDS | {"fps": 16, "num_images": 1, "image": "…"})
    assert request.num_frames == 9


def test_guidance_above_one_adds_a_negative_prompt() -> None:
    assert read_request(WanRequest, FIELDS).prompts == {
        "prompt": "a red circle",
        "negative_prompt": "",
    }
    named = read_request(WanRequest, FIELDS | {"negative_prompt": "a star"})
    assert named.prompts == {"prompt": "a red circle", "negative_prompt": "a star"}
    unguided = read_request(
        WanRequest, FIELDS | {"guidance_scale": 1.0, "negative_prompt": "a star"}
    )
    assert unguided.prompts == {"prompt": "a red circle"}


def test_the_second_expert_is_guided_as_the_first_unless_it_has_its_own_scale() -> None:
    request = read_request(WanRequest, FIELDS)
    assert request.scale_of("transformer") == request.scale_of("transformer_2") == 5.0
    request = read_request(WanRequest, FIELDS | {"guidance_scale_2": 0.5})
    assert (request.scale_of("transformer"), request.scale_of("transformer_2")) == (5.0, 0.5)
