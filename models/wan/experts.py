"""Wan 2.2's two experts: which denoises when, and whether both fit into the device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Expert = Literal["transformer", "transformer_2"]
"""High noise, low noise: diffusers' names of the components."""

RESERVE = 0.2
"""Share of the device's memory for activations, the decoder's chunks and compiled programs."""


@dataclass(frozen=True)
class Experts:
    """Experts of a checkpoint, and which one denoises at which timestep.

    Source: diffusers pipeline_wan.py, the denoising loop.
    """

    present: frozenset[Expert]
    boundary: float | None
    """The lowest timestep of the high-noise expert; None: it does all steps."""

    def at(self, timestep: np.float32) -> Expert:
        """The expert of a step. Raises: ValueError: the checkpoint does not have it."""
        # In float32, as torch compares a tensor with a number.
        high = self.boundary is None or bool(timestep >= np.float32(self.boundary))
        expert: Expert = "transformer" if high else "transformer_2"
        if expert not in self.present:
            raise ValueError(
                f"the step at timestep {timestep:g} is {expert}'s (boundary {self.boundary}), "
                "which this checkpoint does not have"
            )
        return expert


def must_swap(experts_bytes: Sequence[int], rest_bytes: int, limit_bytes: int | None) -> bool:
    """Return whether the experts have to take turns on the device.

    Args:
        experts_bytes: of each expert's weights; a single one has nobody to take turns with.
        rest_bytes: of all other weights.
        limit_bytes: what the device can hold; None: it does not say, as a CPU does not.
    """
    if len(experts_bytes) < 2 or limit_bytes is None:
        return False
    return sum(experts_bytes) + rest_bytes > limit_bytes * (1 - RESERVE)
