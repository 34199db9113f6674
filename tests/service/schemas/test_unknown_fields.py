"""Errors for unknown fields of a body name the field that was probably meant."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel

from service.admission.parse import parse_as, parse_body
from service.errors.problems import Invalid
from service.routes.compat.mcp.arguments import ImageArguments
from service.routes.compat.replicate.bodies import PredictionRequest
from service.schemas.request import GenerateRequest
from service.schemas.request_parts import (
    ControlRequest,
    HiresRequest,
    ImagePromptRequest,
    LoraRequest,
    OutputRequest,
    UpscaleRequest,
    WebhookRequest,
)
from service.schemas.unknown_fields import ALIASES

PARTS: dict[str, type[BaseModel]] = {
    "": GenerateRequest,
    "loras": LoraRequest,
    "control": ControlRequest,
    "image_prompts": ImagePromptRequest,
    "hires": HiresRequest,
    "upscale": UpscaleRequest,
    "output": OutputRequest,
    "webhook": WebhookRequest,
}


def field_errors(body: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(Invalid) as caught:
        parse_body({"prompt": "a cat"} | body)
    return {error.field: error.message for error in caught.value.errors}


@pytest.mark.parametrize(
    ("body", "field", "meant"),
    [
        ({"steps": 4}, "steps", "num_inference_steps"),
        ({"n": 2}, "n", "num_images"),
        ({"size": "512x512"}, "size", "width and height"),
        ({"cfg_scale": 7}, "cfg_scale", "guidance_scale"),
        ({"cfgScale": 7}, "cfgScale", "guidance_scale"),
        ({"sampler_name": "Euler"}, "sampler_name", 'scheduler, such as {"name": "euler"}'),
        ({"negativePrompt": "dogs"}, "negativePrompt", "negative_prompt"),
        ({"hieght": 512}, "hieght", "height"),
        ({"output": {"fromat": "png"}}, "output.fromat", "format"),
        ({"loras": [{"name": "ink", "weight": 1}]}, "loras.0.weight", "scale"),
        (
            {"loras": [{"name": "ink", "scale": [{"from": 0, "to": 1, "scael": 1}]}]},
            "loras.0.scale.0.scael",
            "scale",
        ),
    ],
)
def test_similar_field_is_suggested(body: dict[str, Any], field: str, meant: str) -> None:
    assert field_errors(body)[field] == f"there is no such field; did you mean {meant}?"


@pytest.mark.parametrize(
    ("body", "field", "shape"),
    [
        ({"scheduler": ["euler"]}, "scheduler", ', such as {"name": "euler"}'),
        ({"loras": ["ink"]}, "loras.0", ', such as {"name": "…", "scale": 1.0}'),
        ({"output": "jpeg"}, "output", ', such as {"format": "png"}'),
        ({"loras": [{"name": "ink", "scale": [1]}]}, "loras.0.scale.0", ""),
    ],
)
def test_error_names_the_expected_shape(body: dict[str, Any], field: str, shape: str) -> None:
    assert field_errors(body)[field] == f"must be an object{shape}"


@pytest.mark.parametrize(
    ("kind", "field", "meant"),
    [
        (PredictionRequest, "inputs", "input"),
        (ImageArguments, "steps", "num_inference_steps"),
        (ImageArguments, "timeout", None),
    ],
)
def test_each_api_suggests_only_its_own_fields(
    kind: type[BaseModel], field: str, meant: str | None
) -> None:
    with pytest.raises(Invalid) as caught:
        parse_as(kind, {field: 4})
    (message,) = [error.message for error in caught.value.errors if error.field == field]
    assert message == "there is no such field" + (f"; did you mean {meant}?" if meant else "")


def test_no_suggestion_for_dissimilar_fields() -> None:
    assert field_errors({"zzz": 1}) == {"zzz": "there is no such field"}


def test_many_unknown_fields_give_a_bounded_error() -> None:
    errors = field_errors({"steps": 4} | {f"zzz{i}": 1 for i in range(100)})
    assert len(errors) == 16
    assert errors["steps"] == "there is no such field; did you mean num_inference_steps?"


@pytest.mark.parametrize("part", ALIASES)
def test_aliases_name_existing_fields(part: str) -> None:
    fields = PARTS[part].model_fields
    for alias, target in ALIASES[part].items():
        assert alias not in fields, f"{alias} is a field now"
        if not target.startswith("the header"):
            first = re.split(r"[., ]", target)[0]
            assert first in fields, (alias, target)
