"""Presets of `quality` on a model's spec, and on the table of steps of one image."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint.folder import read_qualities
from models.interface.pipeline import Fields, RequestError, Step
from models.spec.hires import LATENT
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import (
    COEFFICIENTS,
    DEGREES,
    EXACT,
    OF_EIGHT_BITS,
    THRESHOLD,
    WEIGHTS,
    EightBit,
    Lever,
    Quality,
    StepCache,
    presets,
)
from models.spec.step_plan import Weights

BY_USE: frozenset[Lever] = frozenset({"eight_bit", "progressive"})
"""Levers that the same checkpoint has or lacks by how it is used, which its own presets may pull:
with weights of 8 bits, and where it draws image to image with a strength."""


def with_presets(
    spec: ModelSpec,
    folder: Path,
    levers: Collection[Lever],
    given: Mapping[str, Quality],
    eight_bit: EightBit | None = None,
) -> ModelSpec:
    """The spec with the presets of its family, its folder's `atelier.json`, and the operator.

    Args:
        levers: that the family has, as far as its use leaves it them (`BY_USE`).
        given: the operator's.
        eight_bit: where it has them; None: nowhere.

    Raises: ValueError: a preset pulls a lever that there is not, or leaves out one that has to be
        pulled, or the default is no preset.
    """
    found_here = {"eight_bit": eight_bit, "progressive": LATENT in spec.hires_upscalers}
    there = set(levers) - {lever for lever in BY_USE if not found_here[lever]}
    brought = {
        name: quality
        for name, quality in read_qualities(folder).items()
        if not quality.levers & (BY_USE - there)
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


def apply_levers(
    steps: tuple[Step, ...], quality: Quality, uncached: Collection[str] = (), before: int = 0
) -> tuple[Step, ...]:
    """The steps of an exact image as that preset runs them.

    Args:
        uncached: networks whose steps have no step cache.
        before: steps of the image before these, in another size, of which nothing is kept.
    """
    guided = quality.guided(before + len(steps))[before:]
    phases = [
        replace(
            step.phase,
            guided=step.phase.guided and is_guided,
            quant=quality.eight_bit,
            cache=None if step.phase.network in uncached else quality.cache,
        )
        for step, is_guided in zip(steps, guided, strict=True)
    ]
    image = [*[None] * before, *phases]
    caches = [*zip(quality.thresholds(image), quality.weights(image), strict=True)][before:]
    return tuple(
        replace(step, phase=phase, values={**step.values, **_cache_values(quality, *cache)})
        if phase.cache
        else replace(step, phase=phase)
        for step, phase, cache in zip(steps, phases, caches, strict=True)
    )


def _cache_values(quality: Quality, threshold: float, weights: Weights) -> dict[str, Any]:
    """Return the values of a step's cache for its program."""
    if quality.step_cache is None:
        return {}
    if not isinstance(quality.step_cache, StepCache):
        return {WEIGHTS: np.array(weights, np.float32)}
    values: dict[str, Any] = {THRESHOLD: np.float32(threshold)}
    if quality.step_cache.kind == "teacache":
        given = quality.step_cache.coefficients
        values[COEFFICIENTS] = np.array([0.0] * (DEGREES - len(given)) + list(given), np.float32)
    return values
