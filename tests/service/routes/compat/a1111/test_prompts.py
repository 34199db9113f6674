"""LoRA adapters in AUTOMATIC1111's prompts."""

from __future__ import annotations

import time

import pytest

from service.errors.problems import Invalid
from service.routes.compat.a1111.bodies import TextToImage
from service.routes.compat.a1111.prompts import unknown_tags, without_adapters
from service.routes.compat.a1111.translation import warnings_of
from tests.service.standin import SPEC


def test_adapters_leave_the_prompt() -> None:
    text, loras = without_adapters("a cat <lora:ink:0.8> at <lyco:my night:-1> night <lora:x>")
    assert text == "a cat  at  night"
    assert loras == [
        {"name": "ink", "scale": 0.8},
        {"name": "my night", "scale": -1.0},
        {"name": "x", "scale": 1.0},
    ]


def test_repeated_adapter_has_the_sum_of_its_scales() -> None:
    assert without_adapters("<lora:a:0.5><lora:a:0.25:0.25>")[1] == [{"name": "a", "scale": 0.75}]


@pytest.mark.parametrize("prompt", ["a < b > c", " (a:1.2) ", "<lora>", "<:a>", ""])
def test_other_prompts_are_unchanged(prompt: str) -> None:
    assert without_adapters(prompt) == (prompt, [])


def test_tags_of_unknown_kinds_leave_the_prompt_and_are_named() -> None:
    """AUTOMATIC1111 skips them, too."""
    prompt = "a <wildcard:colors> cat <lora:ink> <wildcard:b>"
    assert without_adapters(prompt) == ("a  cat", [{"name": "ink", "scale": 1.0}])
    assert unknown_tags(prompt) == ["wildcard"]
    body = TextToImage(prompt=prompt)
    assert [warning.message for warning in warnings_of(body, SPEC)] == [
        "<wildcard:…> has no effect; use <lora:name:scale>"
    ]


@pytest.mark.parametrize("prompt", ["<hypernet:a:1>", "<lora:a:b>", "<lora:a:1:2>"])
def test_unsupported_syntax_is_rejected(prompt: str) -> None:
    with pytest.raises(Invalid):
        without_adapters(prompt)


def test_hostile_prompts_take_no_time() -> None:
    began = time.process_time()
    for part in ("<a:", "<lora:", "<" + "a" * 31):
        without_adapters(part * (2**20 // len(part)))
    assert time.process_time() - began < 2  # quadratic time would be minutes
