"""Presets of `quality` on a model's spec, and on the table of steps of one picture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint import read_qualities
from models.pipeline import Fields, RequestError, Step
from models.quality import (
    COEFFICIENTS,
    DEGREES,
    EXACT,
    THRESHOLD,
    Lever,
    Quality,
    presets,
)
from models.spec import ModelSpec


def with_presets(
    spec: ModelSpec, folder: Path, levers: Collection[Lever], given: Mapping[str, Quality]
) -> ModelSpec:
    """The spec with the presets of its family, its folder's `atelier.json`, and the operator.

    Args:
        levers: that the family has.
        given: the operator's.

    Raises: ValueError: a preset pulls a lever that there is not, or the default is no preset.
    """
    found = presets(levers, read_qualities(folder), given)
    chosen = spec.defaults.get("quality", EXACT)
    if chosen not in {EXACT, *found}:
        raise ValueError(f"the default quality {chosen!r} is none of {', '.join([EXACT, *found])}")
    return spec.model_copy(
        update={
            "defaults": {"quality": EXACT, **spec.defaults},
            "bucket_fields": (*spec.bucket_fields, "quality"),
            "qualities": found,
        }
    )


def quality_of(spec: ModelSpec, fields: Fields) -> Quality:
    """The preset that a request names. Raises: RequestError: there is none of that name."""
    name = fields.get("quality") or EXACT
    if name != EXACT and name not in spec.qualities:
        raise RequestError("quality", f"is none of {', '.join([EXACT, *spec.qualities])}")
    return Quality() if name == EXACT else spec.qualities[name]


def eased(
    steps: tuple[Step, ...], quality: Quality, unguided: Callable[[str], str]
) -> tuple[Step, ...]:
    """The steps of an exact picture as that preset runs them.

    Args:
        unguided: a phase → the one that leaves out the negative prompt.
    """
    guided = quality.guided(len(steps))
    phases = [
        step.phase if is_guided else unguided(step.phase)
        for step, is_guided in zip(steps, guided, strict=True)
    ]
    thresholds = quality.thresholds(phases)
    return tuple(
        Step(quality.of_program.on(phase), {**step.values, **_told(quality, threshold)})
        for step, phase, threshold in zip(steps, phases, thresholds, strict=True)
    )


def _told(quality: Quality, threshold: float) -> dict[str, Any]:
    """What a step's program is told for its cache."""
    if quality.step_cache is None:
        return {}
    told: dict[str, Any] = {THRESHOLD: np.float32(threshold)}
    if quality.step_cache.kind == "teacache":
        given = quality.step_cache.coefficients
        told[COEFFICIENTS] = np.array([0.0] * (DEGREES - len(given)) + list(given), np.float32)
    return told
