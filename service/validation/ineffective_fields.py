"""Fields of a valid request that have no effect, or not the one they name: told as warnings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from models.spec.controls import FIELD as CONTROL
from models.spec.controls import is_read_with_others
from models.spec.hires import passes
from models.spec.model_spec import Need
from models.spec.progressive import why_idle
from models.spec.prompt_syntax import (
    has_compositions,
    has_edits,
    has_lost_weights,
    has_numbers,
)
from models.spec.refiner import FIELD as REFINER
from models.spec.strength import denoising_steps
from service.jobs.model.job import Warned
from service.validation.case import Case
from service.validation.loras import scales
from service.validation.rules import PROMPTS

LOSSLESS = frozenset({"png", "gif"})
"""Formats without a quality."""
SILENT = frozenset({"png", "gif"})
"""Formats of videos that carry no sound."""
SEED_BITS = 32
"""Bits of a seed that torch's generator reads."""
_LORA_TAG = re.compile("<(?:lora|lyco):[^<>]{1,200}>")
"""Adapter as other programs have it in a prompt."""

Warnings = Iterator[Warned]


def all_warnings(case: Case, output: Mapping[str, Any]) -> list[Warned]:
    """Return every warning of a request.

    Args:
        output: as it was resolved.
    """
    return [warning for check in _CHECKS for warning in check(case, output)]


def _idle(case: Case, output: Mapping[str, Any]) -> Warnings:
    """Fields that lack what they need. A default that is sent again is not worth a warning."""
    values = _values(case)
    for name in sorted(case.spec.needs.keys() & case.given.keys()):
        if not case.given[name] or _is_default(case, name):
            continue
        for need in case.spec.needs[name]:
            if not need.is_met(values):
                yield Warned(field=name, message=f"has no effect: {_lack(need, values)}")
                break


def _is_default(case: Case, name: str) -> bool:
    return bool(case.given[name] == case.spec.defaults_for(case.task).get(name))


def _values(case: Case) -> dict[str, Any]:
    scheduler = case.given.get("scheduler", {}).get("name", case.spec.scheduler)
    return {**case.fields, "task": case.task, "scheduler": scheduler}


def _lack(need: Need, values: Mapping[str, Any]) -> str:
    value = values.get(need.field)
    if need.above is not None and value is not None:
        return f"{need.field} is {value:g}, and would have to be above {need.above:g}"
    if need.among:
        return f"the {need.field} is {value or 'another'}, not {' or '.join(need.among)}"
    return f"it needs {need.field}, too"


def _weak_guidance(case: Case, output: Mapping[str, Any]) -> Warnings:
    """Scales between off and on, which diffusers takes for off."""
    thresholds = {
        need.field: need.above
        for needs in case.spec.needs.values()
        for need in needs
        if need.above is not None
    }
    for name in sorted(thresholds.keys() & case.given.keys()):
        if 0 < case.given[name] < thresholds[name]:
            said = f"has no effect: guidance begins above {thresholds[name]:g}"
            yield Warned(field=name, message=said)


def _idle_quality(case: Case, output: Mapping[str, Any]) -> Warnings:
    preset = case.spec.qualities.get(case.given.get("quality", ""))
    needs = case.spec.needs.get("negative_prompt", ())
    if preset is None or preset.levers != {"guidance"}:
        return
    values = _values(case)
    if not needs or not all(need.is_met(values) for need in needs):
        said = "has no effect: it leaves guidance out of some steps, and this request has none"
        yield Warned(field="quality", message=said)


def _idle_progressive(case: Case, output: Mapping[str, Any]) -> Warnings:
    preset = case.spec.qualities.get(case.given.get("quality", ""))
    if preset is None or not (why := why_idle(case.fields, case.spec)):
        return
    what = "has no effect" if preset.levers == {"progressive"} else "has no smaller steps"
    yield Warned(field="quality", message=f"{what}: {why}")


def _long_seed(case: Case, output: Mapping[str, Any]) -> Warnings:
    seed = case.given.get("seed", 0)
    if seed >> SEED_BITS:
        low = seed % 2**SEED_BITS
        said = f"only its lowest {SEED_BITS} bits count, as in torch: it draws what {low} draws"
        yield Warned(field="seed", message=said)


def _idle_output(case: Case, output: Mapping[str, Any]) -> Warnings:
    if output.get("quality") is not None and output["format"] in LOSSLESS:
        said = f"has no effect: {output['format']} has none"
        yield Warned(field="output.quality", message=said)
    if output["format"] == "png" and "fps" in case.given and not _is_default(case, "fps"):
        yield Warned(field="fps", message="has no effect: png gives single frames")


def _silent_output(case: Case, output: Mapping[str, Any]) -> Warnings:
    if case.spec.sound_hz and output["format"] in SILENT:
        said = f"{output['format']} carries no sound: it is left out; mp4 and webm have it"
        yield Warned(field="output.format", message=said)


def _idle_loras(case: Case, output: Mapping[str, Any]) -> Warnings:
    for index, entry in enumerate(case.given.get("loras", ())):
        if not scales(entry):
            said = f"{entry['name']} has no effect: its scale is 0 in every step"
            yield Warned(field=f"loras.{index}", message=said)


def _idle_controls(case: Case, output: Mapping[str, Any]) -> Warnings:
    entries = case.given.get(CONTROL, ())
    for index, entry in enumerate(entries):
        if why := _why_idle(case, entry):
            is_told = is_read_with_others(entry, entries, case.spec.controls)
            what = "its image has no effect, only its mode" if is_told else "has no effect"
            yield Warned(field=f"{CONTROL}.{index}", message=f"{what}: {why}")


def _why_idle(case: Case, control: Mapping[str, Any]) -> str:
    """Return why no step sees a control's image; nothing if one does."""
    if not control["scale"]:
        return "its scale is 0"
    passes_steps = [*_steps_of_passes(case)]
    if any(_is_in(control, step, steps) for steps in passes_steps for step in range(steps)):
        return ""
    return f"none of the {max(passes_steps)} steps lies between its start and end"


def _steps_of_passes(case: Case) -> Iterator[int]:
    for one in passes(case.fields, case.spec):
        if one is not None:
            steps, strength = one["num_inference_steps"], one.get("strength", 1.0)
            yield denoising_steps(steps, strength, case.spec.strength_rounds)


def _is_in(control: Mapping[str, Any], step: int, steps: int) -> bool:
    """Return whether a control acts in a step, by diffusers' rule."""
    return bool(control["start"] <= step / steps and (step + 1) / steps <= control["end"])


def _idle_refiner(case: Case, output: Mapping[str, Any]) -> Warnings:
    if (case.given.get(REFINER) or {}).get("switch") == 1:
        yield Warned(field=REFINER, message="has no effect: a switch of 1 leaves it no steps")


def _weights_as_text(case: Case, output: Mapping[str, Any]) -> Warnings:
    """Report weights in numbers, `(a:1.2)`, of plain prompts; brackets alone may be meant so."""
    if case.fields.get("prompt_syntax") == "weighted":
        return
    for name in sorted({*PROMPTS} & case.given.keys()):
        if has_numbers(case.given[name]):
            said = (
                'weights such as (a:1.2) are read as text; with prompt_syntax "weighted" they count'
            )
            yield Warned(field=name, message=said)


def _weighted_as_text(case: Case, output: Mapping[str, Any]) -> Warnings:
    """Report what AUTOMATIC1111's users write, and a weighted prompt has as text."""
    if case.fields.get("prompt_syntax") != "weighted":
        return
    for is_there, fields, said in _AS_TEXT:
        for name in sorted({*fields} & case.given.keys()):
            if is_there(case.given[name]):
                yield Warned(field=name, message=said)


_AS_TEXT: tuple[tuple[Callable[[str], bool], Iterable[str], str], ...] = (
    (
        has_edits,
        PROMPTS,
        "[a:b:0.5] and [a|b] are no prompt editing here: square brackets weaken their text",
    ),
    (
        has_lost_weights,
        PROMPTS,
        "a weight is read as text: its bracket, (a:1.2), is not closed or was not opened",
    ),
    (
        has_compositions,
        ("prompt", "prompt_2"),  # negative ones it does not compose either
        "AND is a word here: prompts are not composed, and a weight behind one is text",
    ),
)


def _loras_as_text(case: Case, output: Mapping[str, Any]) -> Warnings:
    for name in sorted({*PROMPTS} & case.given.keys()):
        if found := _LORA_TAG.search(case.given[name]):
            said = f"{found[0]} is read as text; name adapters in loras"
            yield Warned(field=name, message=said)


_CHECKS: tuple[Callable[[Case, Mapping[str, Any]], Warnings], ...] = (
    _idle,
    _weak_guidance,
    _idle_quality,
    _idle_progressive,
    _long_seed,
    _idle_output,
    _silent_output,
    _idle_loras,
    _idle_controls,
    _idle_refiner,
    _weights_as_text,
    _weighted_as_text,
    _loras_as_text,
)
