"""Passes of one image: one, or two of different sizes. No JAX: the front end imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.spec import hires, progressive
from models.spec.model_spec import ModelSpec
from models.spec.strength import denoising_steps


def passes(
    fields: Mapping[str, Any], spec: ModelSpec
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the requests of the first and of the second pass; None: there is one alone.

    Two are of hires fix, or of a preset whose first steps are smaller.

    Args:
        fields: a resolved request.
    """
    return progressive.parts(fields, spec) or hires.passes(fields, spec)


def steps_of(one: Mapping[str, Any], spec: ModelSpec) -> int:
    """Return the denoising steps of a pass."""
    if part := one.get(progressive.FIELD):
        return int(part.steps)
    strength = one.get("strength", 1.0)
    return denoising_steps(one["num_inference_steps"], strength, spec.strength_rounds)
