"""Passes of an image: one, or two at different sizes. No JAX: front ends import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.spec import hires, progressive
from models.spec.model_spec import ModelSpec
from models.spec.strength import denoising_steps


def passes(
    fields: Mapping[str, Any], spec: ModelSpec
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the requests of the first and the second pass; None: no second pass.

    Two passes result from hires fix, or from a preset with smaller first steps.

    Args:
        fields: a resolved request.
    """
    return progressive.split_request(fields, spec) or hires.passes(fields, spec)


def steps_of(request: Mapping[str, Any], spec: ModelSpec) -> int:
    """Return the number of denoising steps of a pass."""
    if part := request.get(progressive.FIELD):
        return int(part.steps)
    strength = request.get("strength", 1.0)
    return denoising_steps(request["num_inference_steps"], strength, spec.strength_rounds)
