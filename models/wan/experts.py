"""Two experts of Wan 2.2: assignment of steps, and whether both fit in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Expert = Literal["transformer", "transformer_2"]
"""High-noise and low-noise expert, named as components in diffusers."""

RESERVE = 0.2
"""Fraction of device memory reserved for activations, the decoder's chunks and compiled
programs."""


@dataclass(frozen=True)
class Experts:
    """Experts of a checkpoint, and their ranges of timesteps.

    Source: diffusers pipeline_wan.py, the denoising loop.
    """

    present: frozenset[Expert]
    boundary: float | None
    """Lowest timestep of the high-noise expert; None assigns it all steps."""

    def at(self, timestep: np.float32) -> Expert:
        """Return the expert for a timestep. Raises: ValueError: the checkpoint lacks it."""
        # Compares in float32, as torch does for a tensor and a number.
        high = self.boundary is None or bool(timestep >= np.float32(self.boundary))
        expert: Expert = "transformer" if high else "transformer_2"
        if expert not in self.present:
            raise ValueError(
                f"the step at timestep {timestep:g} is {expert}'s (boundary {self.boundary}), "
                "which this checkpoint does not have"
            )
        return expert


def must_swap(experts_bytes: Sequence[int], rest_bytes: int, limit_bytes: int | None) -> bool:
    """Return whether the device is too small to hold all experts at once.

    Args:
        experts_bytes: size of each expert's weights; a single expert is never swapped.
        rest_bytes: size of all other weights.
        limit_bytes: memory of the device; None if unknown, as on CPUs.
    """
    if len(experts_bytes) < 2 or limit_bytes is None:
        return False
    return sum(experts_bytes) + rest_bytes > limit_bytes * (1 - RESERVE)
