"""Steps that the strength of image to image leaves."""

from __future__ import annotations

from typing import Literal


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
