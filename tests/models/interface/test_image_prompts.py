"""Validation of a request's image prompts by its model's spec."""

from __future__ import annotations

from typing import Any

import pytest

from models.interface.image_prompts import RequestedImagePrompt, requested_image_prompts
from models.spec.image_prompts import ImagePrompt, ImagePromptOptions
from models.spec.request import RequestError
from tests.service.standin import SPEC

KNOWN = {"redux": ImagePrompt(tokens=9, summed=True), "face": ImagePrompt(tokens=4)}
BOTH = SPEC.model_copy(
    update={
        "image_prompts": KNOWN,
        "limits": SPEC.limits.model_copy(update={"max_image_prompts": 3}),
    }
)
ONE = BOTH.model_copy(update={"image_prompts": {"redux": KNOWN["redux"]}})
FILES = {f"image_prompts.{index}.image": bytes([index]) for index in range(4)}


def test_each_prompt_has_its_name_scale_and_file() -> None:
    entries = (ImagePromptOptions(name="face", scale=0.5), ImagePromptOptions(name="redux"))
    assert requested_image_prompts(entries, FILES, BOTH) == (
        RequestedImagePrompt("image_prompts.0.image", "face", 0.5, b"\0"),
        RequestedImagePrompt("image_prompts.1.image", "redux", 1.0, b"\1"),
    )


def test_single_network_is_the_default() -> None:
    (prompt,) = requested_image_prompts([ImagePromptOptions(scale=1)], FILES, ONE)
    assert prompt.name == "redux"


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ([{"name": "face"}, {}], "image_prompts.1.name"),
        ([{"name": "style"}], "image_prompts.0.name"),
        ([{"name": "face"}] * 4, "image_prompts"),
    ],
)
def test_unknown_network_is_named(entries: list[Any], field: str) -> None:
    options = [ImagePromptOptions(**entry) for entry in entries]
    with pytest.raises(RequestError) as error:
        requested_image_prompts(options, FILES, BOTH)
    assert error.value.field == field


def test_a_missing_image_is_named() -> None:
    with pytest.raises(RequestError, match="guides the content"):
        requested_image_prompts([ImagePromptOptions()], {}, ONE)


@pytest.mark.parametrize(
    ("entries", "tokens"),
    [
        ([], ""),
        ([{"name": "redux"}], ",redux_tokens=9"),
        ([{"name": "redux"}, {"name": "face"}, {"name": "redux"}], ",face_tokens=4,redux_tokens=9"),
        ([{"name": "face"}, {"name": "face"}], ",face_tokens=8"),
    ],
)
def test_requests_with_as_many_tokens_are_claimed_together(entries: list[Any], tokens: str) -> None:
    size = {"width": 64, "height": 32}
    assert BOTH.bucket({**size, "image_prompts": entries}) == BOTH.bucket(size) + tokens
