"""Application of `quality` presets to a model's spec, and to the steps of an image."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint.folder import read_qualities
from models.interface.pipeline import Step
from models.spec.hires import LATENT
from models.spec.model_spec import ModelSpec
from models.spec.option import OptionError
from models.spec.quality_presets import (
    COEFFICIENTS,
    DEGREES,
    EIGHT_BIT_PRESETS,
    EXACT,
    THRESHOLD,
    WEIGHTS,
    EightBit,
    Optimization,
    Quality,
    StepCache,
    presets,
)
from models.spec.request import RequestError
from models.spec.step_plan import Weights

BY_USE: frozenset[Optimization] = frozenset({"eight_bit", "progressive"})
"""Optimizations whose availability depends on the checkpoint's use: on 8-bit weights, and on
image-to-image with a strength. Presets of a checkpoint may contain them anyway."""


def with_presets(
    spec: ModelSpec,
    folder: Path,
    optimizations: Collection[Optimization],
    given: Mapping[str, Quality],
    eight_bit: EightBit | None = None,
) -> ModelSpec:
    """Add the presets of the family, the folder's `atelier.json` and the operator to a spec.

    Args:
        optimizations: those that the family supports, restricted by use (`BY_USE`).
        given: the operator's presets.
        eight_bit: storage of 8-bit weights; None: no 8-bit weights.

    Raises: OptionError: a preset has an unsupported optimization or lacks a required one, or the
        default is not a preset.
    """
    by_use = {"eight_bit": eight_bit, "progressive": LATENT in spec.hires_upscalers}
    supported = set(optimizations) - {name for name in BY_USE if not by_use[name]}
    from_folder = {
        name: quality
        for name, quality in read_qualities(folder).items()
        if not quality.optimizations & (BY_USE - supported)
    }
    qualities = presets(supported, from_folder, given)
    if eight_bit == "instead":
        qualities = _of_eight_bits(qualities, given)
    full = spec.model_copy(
        update={
            "defaults": {
                "quality": EIGHT_BIT_PRESETS["w8a16"] if eight_bit == "instead" else EXACT,
                **spec.defaults,
            },
            "bucket_fields": (*spec.bucket_fields, "quality"),
            "qualities": qualities,
            "has_exact": eight_bit != "instead",
        }
    )
    if (chosen := full.defaults["quality"]) not in full.quality_names:
        names = ", ".join(full.quality_names)
        raise OptionError("defaults.quality", f"{chosen!r} must be one of {names}")
    return full


def _of_eight_bits(
    qualities: Mapping[str, Quality], given: Mapping[str, Quality]
) -> dict[str, Quality]:
    """Return the presets that only use 8-bit weights.

    Raises: OptionError: the operator's need exact ones.
    """
    exact = sorted(name for name, quality in given.items() if not quality.eight_bit)
    if exact:
        raise OptionError(
            f"quality.{exact[0]}",
            'needs exact weights, which eight_bit = "instead" replaces; set its '
            'eight_bit = "w8a16", or store both kinds of weights ("beside")',
        )
    return {name: quality for name, quality in qualities.items() if quality.eight_bit}


def quality_of(spec: ModelSpec, name: str) -> Quality:
    """Return the quality preset that a request names. Raises: RequestError: unknown name."""
    if name not in spec.quality_names:
        raise RequestError("quality", f"{name!r} must be one of {', '.join(spec.quality_names)}")
    return Quality() if name == EXACT else spec.qualities[name]


def apply_optimizations(
    steps: tuple[Step, ...], quality: Quality, uncached: Collection[str] = (), before: int = 0
) -> tuple[Step, ...]:
    """Apply a preset to the steps of an exact image.

    Args:
        uncached: networks whose steps have no step cache.
        before: number of the image's steps before these, at another size; their residuals are not
            reused.
    """
    guided = quality.guided(before + len(steps))[before:]
    programs = [
        replace(
            step.program,
            guided=step.program.guided and is_guided,
            quant=quality.eight_bit,
            cache=None if step.program.network in uncached else quality.cache,
        )
        for step, is_guided in zip(steps, guided, strict=True)
    ]
    image = [*[None] * before, *programs]
    caches = [*zip(quality.thresholds(image), quality.weights(image), strict=True)][before:]
    return tuple(
        replace(step, program=program, values={**step.values, **_cache_values(quality, *cache)})
        if program.cache
        else replace(step, program=program)
        for step, program, cache in zip(steps, programs, caches, strict=True)
    )


def _cache_values(quality: Quality, threshold: float, weights: Weights) -> dict[str, Any]:
    """Return the step values of a step cache."""
    if quality.step_cache is None:
        return {}
    if not isinstance(quality.step_cache, StepCache):
        return {WEIGHTS: np.array(weights, np.float32)}
    values: dict[str, Any] = {THRESHOLD: np.float32(threshold)}
    if quality.step_cache.kind == "teacache":
        given = quality.step_cache.coefficients
        values[COEFFICIENTS] = np.array([0.0] * (DEGREES - len(given)) + list(given), np.float32)
    return values
