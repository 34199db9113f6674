"""Planned step caches: which steps run whole, and what the others take instead. No JAX.

What the blocks of a left-out step would add is estimated by a sum of what they added in the last
whole steps, each times a weight. Plans differ in those weights alone, so that they are values of a
step, and one program runs every plan that looks equally far back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from models.spec.frozen import Frozen

Estimate = Literal["reuse", "magnitude", "taylor"]
MAX_ORDER = 2
"""Highest order of a Taylor estimate: each one keeps another residual of the row."""

Weights = tuple[float, ...]
"""Weights of the last whole steps' residuals, the latest first; zeros: the step runs whole."""


class PlannedCache(Frozen):
    """Step cache by a plan: which steps run whole is known before the first one.

    A step that is left out adds to the tokens what all blocks are expected to add. `reuse`: what
    they added in the last whole step. `magnitude`: the same, times the ratio of what they usually
    add in both steps. `taylor`: the last whole steps' continued, as a line or (`order` 2) with
    its bend.

    Source: Ma et al. 2025 (MagCache) for `magnitude`; Liu et al. 2025 (TaylorSeer) for `taylor`.
    """

    kind: Literal["planned"]
    """Steps are chosen ahead, by no signal."""
    steps: int = Field(ge=1)
    """Number of steps of the plan. Images of another number of them have it stretched."""
    whole: tuple[int, ...] = Field(min_length=1)
    """Steps that run whole, from 0, rising. The first one always does, and so do those after a turn
    from guided to unguided steps or from one expert to another."""
    estimate: Estimate = "reuse"
    """Estimate that a left-out step takes in place of its own work."""
    order: int = Field(default=1, ge=1, le=MAX_ORDER)
    """Order of `taylor`; other estimates have none."""
    magnitudes: tuple[float, ...] = ()
    """Mean magnitude of what the blocks add, of each step, for `magnitude`; in any unit."""

    @model_validator(mode="after")
    def _is_one(self) -> PlannedCache:
        rising = all(a < b for a, b in itertools.pairwise(self.whole))
        if not rising or self.whole[0] < 0 or self.whole[-1] >= self.steps:
            raise ValueError(f"whole must rise from 0 on and stay below the {self.steps} steps")
        if (self.estimate == "magnitude") != bool(self.magnitudes):
            raise ValueError("magnitudes belong to the estimate magnitude, which needs them")
        if self.magnitudes and (
            len(self.magnitudes) != self.steps or not all(one > 0 for one in self.magnitudes)
        ):
            raise ValueError(f"magnitudes must be {self.steps} numbers above 0, one a step")
        if self.estimate != "taylor" and self.order != 1:
            raise ValueError(f"order {self.order} belongs to the estimate taylor; leave it out")
        return self

    @property
    def depth(self) -> int:
        """Number of whole steps that estimates look back to."""
        return 1 + self.order if self.estimate == "taylor" else 1

    def weights(self, turns: Sequence[bool]) -> list[Weights]:
        """Return the weights of each step of an image.

        Args:
            turns: for each step whether what was kept before it is of no use there.
        """
        whole, behind = self._whole_of(len(turns)), list[int]()
        found = []
        for step, turned in enumerate(turns):
            behind = [] if turned else behind
            left_out = behind and step not in whole
            weights = self.estimated(step, behind, len(turns)) if left_out else ()
            found.append((*weights, *[0.0] * (self.depth - len(weights))))
            behind = behind if left_out else [step, *behind][: self.depth]
        return found

    def _whole_of(self, steps: int) -> set[int]:
        """Return the whole steps of an image of so many: those in which one of the plan begins."""
        return {step * steps // self.steps for step in self.whole}

    def estimated(self, step: int, behind: Sequence[int], steps: int) -> Weights:
        """Return the weights of a left-out step of so many, one for each that it looks back to.

        Args:
            behind: the last whole steps, the latest first; as many as there are, and no more than
                `depth`.
        """
        if self.estimate == "magnitude":
            return (self._magnitude(step, steps) / self._magnitude(behind[0], steps),)
        return taylor(step, behind) if self.estimate == "taylor" else (1.0,)

    def _magnitude(self, step: int, steps: int) -> float:
        """Return the magnitude at a step of an image of so many, between those of the plan."""
        place = min(step * self.steps / steps, self.steps - 1.0)
        low = int(place)
        high, share = min(low + 1, self.steps - 1), place - low
        return (1 - share) * self.magnitudes[low] + share * self.magnitudes[high]


def taylor(step: int, behind: Sequence[int]) -> Weights:
    """Return the weights of a Taylor expansion by divided differences, of as high an order as can.

    Args:
        behind: steps whose residuals are there, the latest first; 1 to 3.
    """
    ahead = step - behind[0]
    if len(behind) == 1:
        return (1.0,)
    slope = 1 / (behind[0] - behind[1])
    if len(behind) == 2:
        return (1 + ahead * slope, -ahead * slope)
    before = 1 / (behind[1] - behind[2])
    bend = slope * ahead * ahead / 2
    return (
        1 + ahead * slope + bend * slope,
        -ahead * slope - bend * (slope + before),
        bend * before,
    )
