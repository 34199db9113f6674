"""Number of denoising steps that a request runs."""

from __future__ import annotations

from collections.abc import Sequence

from models.spec.model_spec import ModelSpec

STEP_LISTS = frozenset({"timesteps", "sigmas"})
"""Fields that tell the steps one by one."""


def listed_steps(field: str, values: Sequence[float], spec: ModelSpec) -> int:
    """Steps of one of STEP_LISTS; the last noise level is where the last step leads, and none."""
    return len(values) - (field == "sigmas" and spec.sigmas_are == "noise levels")
