"""How many denoising steps a request runs."""

from __future__ import annotations

from collections.abc import Sequence

STEP_LISTS = frozenset({"timesteps", "sigmas"})
"""Fields that tell the steps one by one."""


def denoising_steps(num_inference_steps: int, strength: float) -> int:
    """Steps that run of those asked for.

    Source: Meng et al. 2022 (SDEdit), section 3; rounded as in diffusers' get_timesteps.
    """
    skipped = num_inference_steps - min(num_inference_steps * strength, num_inference_steps)
    return num_inference_steps - int(max(skipped, 0))


def listed_steps(field: str, values: Sequence[float]) -> int:
    """Steps of one of STEP_LISTS; a last sigma of 0 is where the last step leads, and no step."""
    return len(values) - (field == "sigmas" and values[-1] == 0)
