"""Presets of `quality` on a model's spec, and on the table of steps of one image."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint.folder import read_qualities
from models.interface.pipeline import Fields, RequestError, Step
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import (
    COEFFICIENTS,
    DEGREES,
    EXACT,
    OF_EIGHT_BITS,
    THRESHOLD,
    EightBit,
    Lever,
    Quality,
    presets,
)


def with_presets(
    spec: ModelSpec,
    folder: Path,
    levers: Collection[Lever],
    given: Mapping[str, Quality],
    eight_bit: EightBit | None = None,
) -> ModelSpec:
    """The spec with the presets of its family, its folder's `atelier.json`, and the operator.

    Args:
        levers: that the family has, where it has weights of 8 bits for that one.
        given: the operator's.
        eight_bit: where it has them; None: nowhere.

    Raises: ValueError: a preset pulls a lever that there is not, or leaves out one that has to be
        pulled, or the default is no preset.
    """
    there = set(levers) if eight_bit else set(levers) - {"eight_bit"}
    brought = {
        name: quality
        for name, quality in read_qualities(folder).items()
        if eight_bit or not quality.eight_bit
    }
    found = presets(there, brought, given)
    if eight_bit == "instead":
        found = _of_eight_bits(found, given)
    full = spec.model_copy(
        update={
            "defaults": {
                "quality": OF_EIGHT_BITS["w8a16"] if eight_bit == "instead" else EXACT,
                **spec.defaults,
            },
            "bucket_fields": (*spec.bucket_fields, "quality"),
            "qualities": found,
            "has_exact": eight_bit != "instead",
        }
    )
    if (chosen := full.defaults["quality"]) not in full.quality_names:
        there_is = ", ".join(full.quality_names)
        raise ValueError(f"the default quality {chosen!r} is none of {there_is}")
    return full


def _of_eight_bits(
    found: Mapping[str, Quality], given: Mapping[str, Quality]
) -> dict[str, Quality]:
    """Return the presets that need no exact weights. Raises: ValueError: the operator's do."""
    exact = sorted(name for name, quality in given.items() if not quality.eight_bit)
    if exact:
        raise ValueError(
            f'quality.{exact[0]} needs exact weights, which eight_bit = "instead" lets go; '
            'give it eight_bit = "w8a16", or have both ("beside")'
        )
    return {name: quality for name, quality in found.items() if quality.eight_bit}


def quality_of(spec: ModelSpec, fields: Fields) -> Quality:
    """The preset that a request names. Raises: RequestError: there is none of that name."""
    name = fields.get("quality") or EXACT
    if name not in spec.quality_names:
        raise RequestError("quality", f"{name!r} is none of {', '.join(spec.quality_names)}")
    return Quality() if name == EXACT else spec.qualities[name]


def apply_levers(steps: tuple[Step, ...], quality: Quality) -> tuple[Step, ...]:
    """The steps of an exact image as that preset runs them."""
    guided = quality.guided(len(steps))
    phases = [
        replace(
            step.phase,
            guided=step.phase.guided and is_guided,
            quant=quality.eight_bit,
            cache=quality.cache,
        )
        for step, is_guided in zip(steps, guided, strict=True)
    ]
    thresholds = quality.thresholds(phases)
    return tuple(
        replace(step, phase=phase, values={**step.values, **_cache_values(quality, threshold)})
        for step, phase, threshold in zip(steps, phases, thresholds, strict=True)
    )


def _cache_values(quality: Quality, threshold: float) -> dict[str, Any]:
    """Return the values of a step's cache for its program."""
    if quality.step_cache is None:
        return {}
    values: dict[str, Any] = {THRESHOLD: np.float32(threshold)}
    if quality.step_cache.kind == "teacache":
        given = quality.step_cache.coefficients
        values[COEFFICIENTS] = np.array([0.0] * (DEGREES - len(given)) + list(given), np.float32)
    return values
