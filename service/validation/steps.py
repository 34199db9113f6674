"""Number of denoising steps defined by explicit timesteps or sigmas."""

from __future__ import annotations

from collections.abc import Sequence

from models.spec.model_spec import ModelSpec

STEP_LISTS = frozenset({"timesteps", "sigmas"})
"""Fields that list the steps individually."""


def listed_steps(field: str, values: Sequence[float], spec: ModelSpec) -> int:
    """Count the steps of one of STEP_LISTS. A last noise level is an end point, not a step."""
    return len(values) - (field == "sigmas" and spec.sigmas_are == "noise levels")
