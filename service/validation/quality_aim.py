"""Choice of the preset for a likeness that a request wants, by what was measured of presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec, Task
from models.spec.quality_presets import EXACT, Measured
from service.errors.problems import FieldError

FIELD = "quality"
WANTED = "min_psnr_db"


def chosen_preset(fields: Mapping[str, Any], spec: ModelSpec, task: Task) -> str | FieldError:
    """Return the fastest preset whose images have all kept the wanted PSNR, or what is wrong.

    It is `exact`, which keeps any, where none is known to or none that does is faster. Figures hold
    for as many steps as were measured, in one pass of the model's first task.

    Args:
        fields: with the defaults filled in, and an aim for the quality.
    """
    if FIELD not in spec.fields:
        return _wrong(f"the model {spec.name!r} has no presets; leave it out")
    wanted_db = float(fields[FIELD][WANTED])
    measured = _of_such_requests(fields, spec, task)
    near = {name: one for name, one in measured.items() if one.worst_db >= wanted_db}
    if near:
        fastest = min(near, key=lambda name: (near[name].time, -near[name].worst_db))
        return EXACT if spec.has_exact and near[fastest].time >= 1 else fastest
    return EXACT if spec.has_exact else _wrong(_none_of(measured, wanted_db, spec))


def _of_such_requests(
    fields: Mapping[str, Any], spec: ModelSpec, task: Task
) -> Mapping[str, Measured]:
    """Return the figures that hold for a request, by preset."""
    if task != spec.tasks[0] or fields.get(HIRES):
        return {}
    return {
        name: preset.measured
        for name, preset in spec.qualities.items()
        if preset.measured and preset.measured.steps == fields["num_inference_steps"]
    }


def _none_of(measured: Mapping[str, Measured], wanted_db: float, spec: ModelSpec) -> str:
    """Say why no preset of a model without `exact` is known to keep that."""
    if measured:
        best = max(measured, key=lambda name: measured[name].worst_db)
        return (
            f"no preset has kept {wanted_db:g} dB; the nearest is {best!r}, with "
            f"{measured[best].worst_db:g} dB at the worst"
        )
    there = {preset.measured.steps for preset in spec.qualities.values() if preset.measured}
    if not there:
        return f"nobody has measured the presets of {spec.name!r}, which has no exact one; name one"
    steps = ", ".join(map(str, sorted(there)))
    return f"is measured of {spec.tasks[0]} in one pass at {steps} steps alone; name a preset"


def _wrong(said: str) -> FieldError:
    return FieldError(f"{FIELD}.{WANTED}", said)
