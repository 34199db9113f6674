"""Number of denoising steps that a request runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from models.spec.model_spec import ModelSpec

STEP_LISTS = frozenset({"timesteps", "sigmas"})
"""Fields that tell the steps one by one."""


def denoising_steps(
    num_inference_steps: int, strength: float, rounds: Literal["down", "up"] = "up"
) -> int:
    """Steps that run of those asked for.

    Source: Meng et al. 2022 (SDEdit), section 3; rounded as in diffusers' get_timesteps, of which
    Flux's cuts off the steps that are skipped, and SDXL's those that run.
    """
    run = min(num_inference_steps * strength, num_inference_steps)
    if rounds == "down":
        return int(run)
    return num_inference_steps - int(max(num_inference_steps - run, 0))


def listed_steps(field: str, values: Sequence[float], spec: ModelSpec) -> int:
    """Steps of one of STEP_LISTS; the last noise level is where the last step leads, and none."""
    return len(values) - (field == "sigmas" and spec.sigmas_are == "noise levels")
