"""Selection of a quality preset by a minimum PSNR, from calibration results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec, Task
from models.spec.quality_presets import EXACT, Measured
from service.errors.problems import FieldError

FIELD = "quality"
MIN_PSNR_DB = "min_psnr_db"


def select_preset(fields: Mapping[str, Any], spec: ModelSpec, task: Task) -> str | FieldError:
    """Select the fastest preset whose images all reached the requested PSNR, or return an error.

    The result is `exact`, which always qualifies, if no other preset qualifies or is faster.
    Results apply only to the calibrated number of steps, in one pass of the model's first task.

    Args:
        fields: fields with defaults applied, and an aim as quality.
    """
    if FIELD not in spec.fields:
        return _wrong(f"the model {spec.name!r} has no presets; leave it out")
    minimum_db = float(fields[FIELD][MIN_PSNR_DB])
    measured = _applicable_results(fields, spec, task)
    qualifying = {
        name: figures for name, figures in measured.items() if figures.worst_db >= minimum_db
    }
    if qualifying:
        fastest = min(
            qualifying, key=lambda name: (qualifying[name].time, -qualifying[name].worst_db)
        )
        return EXACT if spec.has_exact and qualifying[fastest].time >= 1 else fastest
    return EXACT if spec.has_exact else _wrong(_no_preset_message(measured, minimum_db, spec))


def _applicable_results(
    fields: Mapping[str, Any], spec: ModelSpec, task: Task
) -> Mapping[str, Measured]:
    """Return the calibration results that apply to a request, by preset."""
    if task != spec.tasks[0] or fields.get(HIRES):
        return {}
    return {
        name: preset.measured
        for name, preset in spec.qualities.items()
        if preset.measured and preset.measured.steps == fields["num_inference_steps"]
    }


def _no_preset_message(measured: Mapping[str, Measured], wanted_db: float, spec: ModelSpec) -> str:
    """Explain why no preset of a model without `exact` qualifies."""
    if measured:
        best = max(measured, key=lambda name: measured[name].worst_db)
        return (
            f"no preset reaches {wanted_db:g} dB; the closest is {best!r}, with"
            f" {measured[best].worst_db:g} dB at worst"
        )
    step_counts = {preset.measured.steps for preset in spec.qualities.values() if preset.measured}
    if not step_counts:
        return (
            f"the presets of {spec.name!r} have not been measured, and it has no exact preset;"
            " name a preset"
        )
    steps = ", ".join(map(str, sorted(step_counts)))
    return f"was measured only for {spec.tasks[0]} in one pass of {steps} steps; name a preset"


def _wrong(message: str) -> FieldError:
    return FieldError(f"{FIELD}.{MIN_PSNR_DB}", message)
