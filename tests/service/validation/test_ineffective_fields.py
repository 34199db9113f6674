"""Warnings for accepted fields without effect."""

from __future__ import annotations

from typing import Any

import pytest

from models.spec.controls import ControlKind
from models.spec.model_spec import ModelSpec, Need
from models.spec.quality_presets import GuidanceInterval, Quality, StepCache
from service.schemas.request import GenerateRequest
from service.settings.limits import LimitSettings
from service.validation.resolved_fields import resolve
from tests.service.standin import SPEC, VIDEO

GUIDED = Need(field="guidance_scale", above=1)
INTERVAL = Quality(guidance=GuidanceInterval(stop=0.6))
PICTURES = SPEC.model_copy(
    update={
        "tasks": ("text-to-image", "image-to-image", "inpainting"),
        "fields": SPEC.fields | {"negative_prompt_2", "eta", "scheduler", "quality", "clip_skip"},
        "schedulers": {"euler": {}, "ddim": {}},
        "scheduler": "EulerDiscreteScheduler",
        "qualities": {
            "guidance-interval": INTERVAL,
            "fast": INTERVAL.model_copy(
                update={"step_cache": StepCache(kind="first-block", threshold=0.1)}
            ),
        },
        "needs": {
            "negative_prompt": (GUIDED,),
            "negative_prompt_2": (GUIDED, Need(field="negative_prompt")),
            "eta": (Need(field="scheduler", among=("ddim", "DDIMScheduler")),),
            "clip_skip": (Need(field="task", among=("image-to-image",)),),
        },
    }
)
WEIGHTED = PICTURES.model_copy(update={"fields": PICTURES.fields | {"prompt_syntax"}})


def warnings_of(spec: ModelSpec = PICTURES, **fields: Any) -> dict[str, str]:
    request = GenerateRequest.model_validate({"prompt": "a cat"} | fields)
    warnings = resolve(request, spec, LimitSettings()).warnings
    return {warning.field: warning.message for warning in warnings}


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"negative_prompt": "rain", "guidance_scale": 1.0}, "negative_prompt", "scale is 1, but"),
        ({"negative_prompt_2": "rain"}, "negative_prompt_2", "also requires negative_prompt"),
        ({"eta": 0.5}, "eta", "is EulerDiscreteScheduler, not ddim or DDIMScheduler"),
        ({"eta": 0.5, "scheduler": {"name": "euler"}}, "eta", "is euler, not ddim"),
        ({"clip_skip": 1}, "clip_skip", "the task is text-to-image, not image-to-image"),
        ({"guidance_scale": 0.5}, "guidance_scale", "begins above 1"),
        ({"seed": 2**32 + 7}, "seed", "the result is that of 7"),
        (
            {"output": {"format": "png", "quality": 50}},
            "output.quality",
            "png has no quality setting",
        ),
        ({"quality": "guidance-interval", "guidance_scale": 0}, "quality", "this request has none"),
    ],
)
def test_field_without_effect_is_a_warning(fields: dict[str, Any], field: str, said: str) -> None:
    (message,) = [text for name, text in warnings_of(**fields).items() if name == field]
    assert said in message


@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
def test_weights_and_adapters_in_a_plain_prompt_are_warnings(field: str) -> None:
    assert (
        'with prompt_syntax "weighted" they apply' in warnings_of(**{field: "a (cat:1.2)"})[field]
    )
    message = warnings_of(**{field: "a cat <lora:outline:0.8>"})[field]
    assert message == "<lora:outline:0.8> is read as text; name adapters in loras"


@pytest.mark.parametrize("prompt", ["a (cat)", "[a] cat", "a cat (1:2", "a < b", ":-)"])
def test_brackets_in_plain_text_are_no_warning(prompt: str) -> None:
    assert warnings_of(prompt=prompt) == {}


def test_prompt_editing_is_a_warning() -> None:
    editing = {"prompt": "a [cat:dog:0.5]", "negative_prompt": "[rain|snow]"}
    warnings = warnings_of(WEIGHTED, prompt_syntax="weighted", **editing)
    assert warnings.keys() == editing.keys()
    assert "do not edit the prompt here" in warnings["prompt"]
    assert warnings_of(WEIGHTED, **editing) == {}


def test_unbalanced_brackets_are_a_warning() -> None:
    lost = {"prompt": "a (cat:1.2", "negative_prompt": "rain:1.2)"}
    warnings = warnings_of(WEIGHTED, prompt_syntax="weighted", **lost)
    assert warnings.keys() == lost.keys()
    assert "is not closed or was not opened" in warnings["prompt"]
    assert warnings_of(WEIGHTED, **lost) == {}


def test_compositions_are_a_warning() -> None:
    composed = {"prompt": "a cat :1.2 AND a dog", "negative_prompt": "rain AND snow"}
    warnings = warnings_of(WEIGHTED, prompt_syntax="weighted", **composed)
    assert warnings.keys() == {"prompt"}
    assert "AND is an ordinary word here" in warnings["prompt"]
    assert warnings_of(WEIGHTED, **composed) == {}


def test_effective_weights_are_no_warning() -> None:
    weighted = {"prompt_syntax": "weighted", "prompt": "a (cat:1.2)"}
    assert warnings_of(WEIGHTED, **weighted) == {}
    default = WEIGHTED.model_copy(
        update={"defaults": WEIGHTED.defaults | {"prompt_syntax": "weighted"}}
    )
    assert warnings_of(default, prompt="a (cat:1.2)") == {}
    assert warnings_of(default, **weighted | {"prompt_syntax": "plain"}).keys() == {"prompt"}
    assert warnings_of(WEIGHTED, **weighted | {"prompt": "<lora:outline>"}).keys() == {"prompt"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"negative_prompt": "rain"},
        {"negative_prompt": "rain", "negative_prompt_2": "snow"},
        {"negative_prompt": "", "guidance_scale": 1.0},
        {"guidance_scale": 0},
        {"eta": 0.5, "scheduler": {"name": "ddim"}},
        {"seed": 2**32 - 1},
        {"output": {"format": "jpeg", "quality": 50}},
        {"quality": "guidance-interval"},
        {"quality": "fast", "guidance_scale": 0},
    ],
)
def test_a_field_with_an_effect_is_not(fields: dict[str, Any]) -> None:
    assert warnings_of(**fields) == {}


def test_a_rate_of_single_frames() -> None:
    frames = {"format": "png"}
    assert "single frames" in warnings_of(VIDEO, fps=30, output=frames)["fps"]
    assert warnings_of(VIDEO, fps=VIDEO.defaults["fps"], output=frames) == {}
    assert warnings_of(VIDEO, fps=30) == {}


@pytest.mark.parametrize("format", ["png", "gif", "mp4", "webm"])
def test_format_without_sound_is_a_warning(format: str) -> None:
    with_sound = VIDEO.model_copy(update={"sound_hz": 48000})
    warnings = warnings_of(with_sound, output={"format": format})
    if format in ("png", "gif"):
        assert f"{format} has no sound" in warnings["output.format"]
    else:
        assert warnings == {}
    assert "output.format" not in warnings_of(VIDEO, output={"format": format})


def test_a_need_of_some_tasks_is_met_in_others() -> None:
    need = Need(field="negative_target_size", tasks=("text-to-image",))
    assert not need.is_met({"task": "text-to-image"})
    assert need.is_met({"task": "inpainting"})
    assert need.is_met({"task": "text-to-image", "negative_target_size": [8, 8]})


CONTROLLED = SPEC.model_copy(
    update={"fields": SPEC.fields | {"refiner"}, "controls": {"canny": ControlKind()}}
)


@pytest.mark.parametrize(
    ("control", "said"),
    [
        ({"scale": 0}, "its scale is 0"),
        ({"end": 0.2}, "none of the 4 steps is between"),
        ({"start": 0.3, "end": 0.6}, "none of the 4 steps is between"),
        ({"start": 0.25, "end": 0.5}, None),
        ({}, None),
    ],
)
def test_controls_that_no_step_reads(control: dict[str, float], said: str | None) -> None:
    entry = {"name": "canny", "image": "x", **control}
    warnings = warnings_of(CONTROLLED, num_inference_steps=4, control=[entry])
    assert list(warnings) == (["control.0"] if said else [])
    assert said is None or said in warnings["control.0"]


@pytest.mark.parametrize(
    ("others", "said"),
    [((), "has no effect: "), (("depth",), "its image has no effect, only its mode: ")],
)
def test_union_warns_of_unread_modes(others: tuple[str, ...], said: str) -> None:
    kinds = {mode: ControlKind(mode=mode, union=1) for mode in ("pose", "depth")}
    limits = CONTROLLED.limits.model_copy(update={"max_controls": 2})
    spec = CONTROLLED.model_copy(update={"controls": kinds, "limits": limits})
    entries = [{"name": "pose", "image": "x", "scale": 0}]
    entries += [{"name": name, "image": "x"} for name in others]
    warnings = warnings_of(spec, num_inference_steps=4, control=entries)
    assert warnings == {"control.0": f"{said}its scale is 0"}


def test_control_read_only_by_the_second_pass() -> None:
    entry = {"name": "canny", "image": "x", "end": 0.2}
    fields = {"num_inference_steps": 4, "control": [entry], "width": 64, "height": 48}
    assert not warnings_of(CONTROLLED, **fields, hires={"num_inference_steps": 10, "strength": 1})
    few = warnings_of(CONTROLLED, **fields, hires={"strength": 0.5})
    assert "none of the 4 steps" in few["control.0"]


def test_a_refiner_without_steps() -> None:
    assert "no steps" in warnings_of(CONTROLLED, refiner={"switch": 1})["refiner"]
    assert not warnings_of(CONTROLLED, refiner={"switch": 0.5})
