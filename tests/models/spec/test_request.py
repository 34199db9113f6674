"""Reading of stored requests as their families' classes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.requests import REQUESTS
from models.spec.lora import RequestedLora, always
from models.spec.option import OptionError
from models.spec.passes import StepRange
from models.spec.request import Request, RequestError, read_request, served_fields
from tests.test_arrows import FAMILIES

FIELDS: dict[str, Any] = {
    "prompt": "a red circle",
    "seed": 7,
    "width": 64,
    "height": 48,
    "num_inference_steps": 4,
}
VIDEO = {"num_frames": 9, "fps": 24}
OF_EVERY_FAMILY = {
    **FIELDS,
    **VIDEO,
    "max_sequence_length": 64,
    "guidance_scale": 3.5,
    "audio_guidance_scale": 7.0,
    "modality_scale": 3.0,
    "guidance_rescale": 0.5,
}
LORA = RequestedLora(name="ink", digest="0", pages=1, networks=["unet"], scales=always(0.5))
STORED = {
    **OF_EVERY_FAMILY,
    "model": "any",
    "num_images": 2,
    "output": {"format": "png"},
    "loras": [LORA.model_dump(mode="json")],
    "control": [{"name": "canny", "image": "inputs/1", "scale": 0.5, "start": 0.0, "end": 1.0}],
    "image_prompts": [{"image": "inputs/2", "scale": 2}],
}


def test_every_family_has_a_class() -> None:
    assert REQUESTS.keys() == {*FAMILIES}


@pytest.mark.parametrize("family", REQUESTS)
def test_stored_fields_are_read_as_the_family_class(family: str) -> None:
    request = read_request(REQUESTS[family], json.loads(json.dumps(STORED)))
    assert isinstance(request, Request) and request.quality == "exact"
    assert (request.width, request.seed, request.prompt) == (64, 7, "a red circle")
    assert request.loras == (LORA,) and request.progressive is None
    assert (request.control[0].name, request.control[0].scale) == ("canny", 0.5)
    assert (request.image_prompts[0].name, request.image_prompts[0].scale) == (None, 2.0)


@pytest.mark.parametrize("family", REQUESTS)
def test_checkpoint_fields_are_not_family_fields(family: str) -> None:
    names = served_fields(REQUESTS[family], "image")
    assert {"prompt", "seed", "width", "quality", "num_images", "image"} <= names
    assert not names & {"loras", "control", "image_prompts", "progressive"}


def test_pass_of_progressive_size_is_typed() -> None:
    part = StepRange(before=0, steps=2, width=128, height=96)
    assert read_request(Request, {**FIELDS, "progressive": part}).progressive == part


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"width": 0}, "width", "must be at least 1"),
        ({"width": None}, "width", "is required"),
        ({"sigmas": [0.5, 0.5]}, "sigmas", "must fall from at most 1 and stay above 0"),
    ],
)
def test_wrong_field_is_named(changes: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(RequestError) as error:
        read_request(REQUESTS["flux"], {**OF_EVERY_FAMILY, **changes})
    assert (error.value.field, error.value.message) == (field, message)
    assert str(error.value) == f"{field}: {message}"


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("sigmas", "sigmas"),
        ("solver_order", "scheduler.solver_order"),
        ("scheduler", "scheduler"),
    ],
)
def test_option_that_a_scheduler_rejects_is_a_field_of_the_request(field: str, named: str) -> None:
    error = RequestError.of_scheduler(OptionError(field, "must be 2"))
    assert (error.field, error.message) == (named, "must be 2")
