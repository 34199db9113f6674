"""Warnings about fields of a valid request without effect, or with an unexpected one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from models.spec.controls import FIELD as CONTROL
from models.spec.controls import is_read_with_others
from models.spec.field_types import REFINER
from models.spec.hires import passes
from models.spec.model_spec import Need
from models.spec.passes import reason_without_effect, steps_of
from models.spec.prompt_syntax import (
    has_compositions,
    has_edits,
    has_lost_weights,
    has_numbers,
)
from service.jobs.model.job import FieldWarning
from service.validation.case import Case
from service.validation.embeddings import unknown_embeddings
from service.validation.loras import scales
from service.validation.rules import PROMPTS

LOSSLESS = frozenset({"png", "gif"})
"""Formats without a quality setting."""
SOUNDLESS = frozenset({"png", "gif"})
"""Video formats without sound."""
SEED_BITS = 32
"""Number of seed bits that torch's generator uses."""
_LORA_TAG = re.compile("<(?:lora|lyco):[^<>]{1,200}>")
"""Adapter in the prompt syntax of other programs."""

Warnings = Iterator[FieldWarning]


def all_warnings(case: Case, output: Mapping[str, Any]) -> list[FieldWarning]:
    """List all warnings about a valid request's fields.

    Args:
        output: resolved output options.
    """
    return [warning for check in _CHECKS for warning in check(case, output)]


def _unmet_needs(case: Case, output: Mapping[str, Any]) -> Warnings:
    """Warn about fields that have no effect because a condition is not met.

    Defaults that are sent explicitly are exempt.
    """
    values = _values(case)
    for name in sorted(case.spec.needs.keys() & case.requested.keys()):
        if not case.requested[name] or _is_default(case, name):
            continue
        for need in case.spec.needs[name]:
            if not need.is_met(values):
                yield FieldWarning(
                    field=name, message=f"has no effect: {_unmet_need(need, values)}"
                )
                break


def _is_default(case: Case, name: str) -> bool:
    return bool(case.requested[name] == case.spec.defaults_for(case.task).get(name))


def _values(case: Case) -> dict[str, Any]:
    scheduler = case.requested.get("scheduler", {}).get("name", case.spec.scheduler)
    return {**case.fields, "task": case.task, "scheduler": scheduler}


def _unmet_need(need: Need, values: Mapping[str, Any]) -> str:
    value = values.get(need.field)
    if need.above is not None and value is not None:
        return f"{need.field} is {value:g}, but must be above {need.above:g}"
    if need.among:
        return f"the {need.field} is {value or 'another'}, not {' or '.join(need.among)}"
    return f"it also requires {need.field}"


def _weak_guidance(case: Case, output: Mapping[str, Any]) -> Warnings:
    """Warn about guidance scales between off and on, which diffusers treats as off."""
    thresholds = {
        need.field: need.above
        for needs in case.spec.needs.values()
        for need in needs
        if need.above is not None
    }
    for name in sorted(thresholds.keys() & case.requested.keys()):
        if 0 < case.requested[name] < thresholds[name]:
            message = f"has no effect: guidance begins above {thresholds[name]:g}"
            yield FieldWarning(field=name, message=message)


def _ineffective_quality(case: Case, output: Mapping[str, Any]) -> Warnings:
    preset = case.spec.qualities.get(case.requested.get("quality", ""))
    needs = case.spec.needs.get("negative_prompt", ())
    if preset is None or preset.optimizations != {"guidance"}:
        return
    values = _values(case)
    if not needs or not all(need.is_met(values) for need in needs):
        message = "has no effect: it skips guidance in some steps, and this request has none"
        yield FieldWarning(field="quality", message=message)


def _ineffective_progressive(case: Case, output: Mapping[str, Any]) -> Warnings:
    preset = case.spec.qualities.get(case.requested.get("quality", ""))
    if preset is None or not (reason := reason_without_effect(case.fields, case.spec)):
        return
    effect = "has no effect" if preset.optimizations == {"progressive"} else "has no smaller steps"
    yield FieldWarning(field="quality", message=f"{effect}: {reason}")


def _long_seed(case: Case, output: Mapping[str, Any]) -> Warnings:
    seed = case.requested.get("seed", 0)
    if seed >> SEED_BITS:
        low = seed % 2**SEED_BITS
        message = (
            f"only its lowest {SEED_BITS} bits count, as in torch: the result is that of {low}"
        )
        yield FieldWarning(field="seed", message=message)


def _ineffective_output(case: Case, output: Mapping[str, Any]) -> Warnings:
    if output.get("quality") is not None and output["format"] in LOSSLESS:
        message = f"has no effect: {output['format']} has no quality setting"
        yield FieldWarning(field="output.quality", message=message)
    if output["format"] == "png" and "fps" in case.requested and not _is_default(case, "fps"):
        yield FieldWarning(field="fps", message="has no effect: png outputs single frames")


def _silent_output(case: Case, output: Mapping[str, Any]) -> Warnings:
    if case.spec.sound_hz and output["format"] in SOUNDLESS:
        message = f"{output['format']} has no sound; mp4 and webm have it"
        yield FieldWarning(field="output.format", message=message)


def _ineffective_loras(case: Case, output: Mapping[str, Any]) -> Warnings:
    for index, entry in enumerate(case.requested.get("loras", ())):
        if not scales(entry):
            message = f"{entry['name']} has no effect: its scale is 0 in every step"
            yield FieldWarning(field=f"loras.{index}", message=message)


def _ineffective_controls(case: Case, output: Mapping[str, Any]) -> Warnings:
    entries = case.requested.get(CONTROL, ())
    for index, entry in enumerate(entries):
        if reason := _ineffective_reason(case, entry):
            sets_mode = is_read_with_others(entry, entries, case.spec.controls)
            effect = "its image has no effect, only its mode" if sets_mode else "has no effect"
            yield FieldWarning(field=f"{CONTROL}.{index}", message=f"{effect}: {reason}")


def _ineffective_reason(case: Case, control: Mapping[str, Any]) -> str:
    """Explain why a control's image affects no step; empty if it affects one."""
    if not control["scale"]:
        return "its scale is 0"
    passes_steps = [*_steps_of_passes(case)]
    if any(_is_in(control, step, steps) for steps in passes_steps for step in range(steps)):
        return ""
    return f"none of the {max(passes_steps)} steps is between its start and end"


def _steps_of_passes(case: Case) -> Iterator[int]:
    for fields in passes(case.fields, case.spec):
        if fields is not None:
            yield steps_of(fields, case.spec)


def _is_in(control: Mapping[str, Any], step: int, steps: int) -> bool:
    """Return whether a control is active in a step, by diffusers' rule."""
    return bool(control["start"] <= step / steps and (step + 1) / steps <= control["end"])


def _ineffective_refiner(case: Case, output: Mapping[str, Any]) -> Warnings:
    if (case.requested.get(REFINER) or {}).get("switch") == 1:
        yield FieldWarning(
            field=REFINER, message=("has no effect: with a switch of 1 it runs no steps")
        )


def _weights_as_text(case: Case, output: Mapping[str, Any]) -> Warnings:
    """Warn about numeric weights, `(a:1.2)`, in plain prompts. Brackets alone may be intended."""
    if case.fields.get("prompt_syntax") == "weighted":
        return
    for name in sorted({*PROMPTS} & case.requested.keys()):
        if has_numbers(case.requested[name]):
            message = (
                'weights such as (a:1.2) are read as text; with prompt_syntax "weighted" they apply'
            )
            yield FieldWarning(field=name, message=message)


def _weighted_as_text(case: Case, output: Mapping[str, Any]) -> Warnings:
    """Warn about AUTOMATIC1111 syntax that a weighted prompt treats as text."""
    if case.fields.get("prompt_syntax") != "weighted":
        return
    for is_present, fields, message in _AS_TEXT:
        for name in sorted({*fields} & case.requested.keys()):
            if is_present(case.requested[name]):
                yield FieldWarning(field=name, message=message)


_AS_TEXT: tuple[tuple[Callable[[str], bool], Iterable[str], str], ...] = (
    (
        has_edits,
        PROMPTS,
        (
            "[a:b:0.5] and [a|b] do not edit the prompt here: square brackets reduce the weight of"
            " their text"
        ),
    ),
    (
        has_lost_weights,
        PROMPTS,
        "a weight is read as text: its bracket, (a:1.2), is not closed or was not opened",
    ),
    (
        has_compositions,
        ("prompt", "prompt_2"),  # AUTOMATIC1111 does not compose negative prompts either
        (
            "AND is an ordinary word here: prompts are not composed, and a weight after a prompt is"
            " text"
        ),
    ),
)


def _loras_as_text(case: Case, output: Mapping[str, Any]) -> Warnings:
    for name in sorted({*PROMPTS} & case.requested.keys()):
        if match := _LORA_TAG.search(case.requested[name]):
            message = f"{match[0]} is read as text; name adapters in loras"
            yield FieldWarning(field=name, message=message)


def _unknown_embeddings(case: Case, output: Mapping[str, Any]) -> Warnings:
    yield from unknown_embeddings(case.requested, case.spec, case.loras)


_CHECKS: tuple[Callable[[Case, Mapping[str, Any]], Warnings], ...] = (
    _unmet_needs,
    _weak_guidance,
    _ineffective_quality,
    _ineffective_progressive,
    _long_seed,
    _ineffective_output,
    _silent_output,
    _ineffective_loras,
    _ineffective_controls,
    _ineffective_refiner,
    _weights_as_text,
    _weighted_as_text,
    _loras_as_text,
    _unknown_embeddings,
)
