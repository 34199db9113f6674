"""Number of steps that the strength of image-to-image runs."""

from __future__ import annotations

from typing import Literal


def denoising_steps(
    num_inference_steps: int, strength: float, rounds: Literal["down", "up"] = "up"
) -> int:
    """Return how many of the requested steps run at a strength.

    Source: Meng et al. 2022 (SDEdit), section 3. Rounding as in diffusers' get_timesteps: Flux
    rounds the skipped steps down, SDXL the steps that run.
    """
    run = min(num_inference_steps * strength, num_inference_steps)
    if rounds == "down":
        return int(run)
    return num_inference_steps - int(max(num_inference_steps - run, 0))
