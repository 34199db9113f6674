"""Planned step caches: a fixed plan chooses the full steps; the others reuse residuals. No JAX.

A skipped step adds a weighted sum of the blocks' residuals from the last full steps. Plans differ
only in these weights, which are inputs of a step. One program therefore runs every plan with the
same depth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from models.spec.frozen import FrozenModel

Estimate = Literal["reuse", "magnitude", "taylor", "spectral"]
MAX_ORDER = 2
"""Highest order of an estimate. Each order stores another residual per row."""
EXTRAPOLATING = ("taylor", "spectral")
"""Estimates from several residuals, which have an order."""
RIDGE = 0.03
"""Penalty on the squared coefficients of `spectral`, except for the constant's. Of 0.003 to 1, the
best for Flux's demo with four full steps of 16."""

MAX_STRETCH = 2
"""Largest ratio between a request's number of steps and that of a plan, if there are several."""

Weights = tuple[float, ...]
"""Weights of the last full steps' residuals, latest first. All zeros: the step runs in full."""


def check_plan(steps: int, whole: Sequence[int], magnitudes: Sequence[float]) -> None:
    """Check a plan's full steps and magnitudes. Raises: ValueError."""
    rising = all(a < b for a, b in itertools.pairwise(whole))
    if not rising or whole[0] < 0 or whole[-1] >= steps:
        raise ValueError(f"whole must rise from 0 on and stay below the {steps} steps")
    if magnitudes and (
        len(magnitudes) != steps or not all(magnitude > 0 for magnitude in magnitudes)
    ):
        raise ValueError(f"magnitudes must be {steps} numbers above 0, one a step")


class StepPlan(FrozenModel):
    """Full steps of a planned cache at a further number of steps."""

    steps: int = Field(ge=1)
    """Number of steps of the plan."""
    whole: tuple[int, ...] = Field(min_length=1)
    """Full steps, ascending from 0."""
    magnitudes: tuple[float, ...] = ()
    """Mean magnitude of the blocks' residual at each step, for `magnitude`."""

    @model_validator(mode="after")
    def _validate(self) -> StepPlan:
        check_plan(self.steps, self.whole, self.magnitudes)
        return self


class PlannedCache(FrozenModel):
    """Step cache with a plan that fixes the full steps in advance.

    A skipped step adds an estimate of the residual of all blocks. `reuse`: the residual of the last
    full step. `magnitude`: that residual times the ratio of the usual magnitudes of both steps.
    `taylor`: an extrapolation of the last full steps, linear or (`order` 2) quadratic. `spectral`:
    a line or (`order` 2) parabola of Chebyshev polynomials, by ridge regression on the last three
    full steps.

    Source: Ma et al. 2025 (MagCache) for `magnitude`; Liu et al. 2025 (TaylorSeer) for `taylor`;
    Han et al. 2026 (Spectrum) for `spectral`, which uses all full steps.
    """

    kind: Literal["planned"]
    """Discriminator of a cache that is planned in advance and measures no signal."""
    steps: int = Field(ge=1)
    """Number of steps of the plan. The plan is stretched for images with another number of steps.
    """
    whole: tuple[int, ...] = Field(min_length=1)
    """Full steps, ascending from 0. The first step always runs in full. So does the first step
    after a change from guided to unguided steps, or from one expert to another."""
    estimate: Estimate = "reuse"
    """Estimate that replaces the residual in a skipped step."""
    order: int = Field(default=1, ge=1, le=MAX_ORDER)
    """Order of `taylor` and `spectral`; must be 1 for other estimates."""
    magnitudes: tuple[float, ...] = ()
    """Mean magnitude of the blocks' residual at each step, for `magnitude`; in any unit."""
    others: tuple[StepPlan, ...] = ()
    """Plans for other numbers of steps. An image has the plan whose number of steps is nearest by
    ratio. With such plans, requests are refused whose number of steps is more than twice, or less
    than half, that of every plan."""

    @model_validator(mode="after")
    def _validate(self) -> PlannedCache:
        check_plan(self.steps, self.whole, self.magnitudes)
        plans: tuple[PlannedCache | StepPlan, ...] = (self, *self.others)
        for plan in plans:
            if (self.estimate == "magnitude") != bool(plan.magnitudes):
                raise ValueError("magnitudes belong to the estimate magnitude, which needs them")
        if len(set(self.step_counts)) != len(self.step_counts):
            raise ValueError("others must have other numbers of steps, each once")
        if self.estimate not in EXTRAPOLATING and self.order != 1:
            estimates = ", ".join(EXTRAPOLATING)
            raise ValueError(f"order {self.order} belongs to the estimates {estimates}")
        return self

    @property
    def depth(self) -> int:
        """Number of earlier full steps that a skipped step's estimate uses."""
        if self.estimate == "spectral":
            return 1 + MAX_ORDER
        return 1 + self.order if self.estimate in EXTRAPOLATING else 1

    @property
    def step_counts(self) -> tuple[int, ...]:
        """Numbers of steps that have a plan, ascending."""
        return tuple(sorted((self.steps, *(plan.steps for plan in self.others))))

    def serves(self, steps: int) -> bool:
        """Return whether images with that many steps may use the plans."""
        ratios = (max(steps, count) / min(steps, count) for count in self.step_counts)
        return not self.others or min(ratios) <= MAX_STRETCH

    def nearest(self, steps: int) -> PlannedCache:
        """Return the cache with the plan for images with that many steps as its only one."""
        plans: Sequence[PlannedCache | StepPlan] = (self, *self.others)
        plan = min(plans, key=lambda plan: (abs(math.log(plan.steps / steps)), plan.steps))
        fields = {"steps": plan.steps, "whole": plan.whole, "magnitudes": plan.magnitudes}
        return self.model_copy(update={**fields, "others": ()})

    def weights(self, step_kind_changes: Sequence[bool]) -> list[Weights]:
        """Return the weights of each step of an image.

        Args:
            step_kind_changes: for each step whether its kind differs from that of the step before,
                which invalidates earlier residuals.
        """
        if self.others and step_kind_changes:
            return self.nearest(len(step_kind_changes)).weights(step_kind_changes)
        full, earlier = self._full_steps(len(step_kind_changes)), list[int]()
        result = []
        for step, is_changed in enumerate(step_kind_changes):
            earlier = [] if is_changed else earlier
            is_skipped = earlier and step not in full
            weights = (
                self.estimate_weights(step, earlier, len(step_kind_changes)) if is_skipped else ()
            )
            result.append((*weights, *[0.0] * (self.depth - len(weights))))
            earlier = earlier if is_skipped else [step, *earlier][: self.depth]
        return result

    def _full_steps(self, steps: int) -> set[int]:
        """Return the full steps of the plan, stretched to an image with that many steps."""
        return {step * steps // self.steps for step in self.whole}

    def estimate_weights(self, step: int, earlier: Sequence[int], steps: int) -> Weights:
        """Return the weights of a skipped step, one for each earlier full step that it uses.

        Args:
            earlier: the last full steps, latest first; at most `depth`.
            steps: number of steps of the image.
        """
        if self.estimate == "magnitude":
            return (self._magnitude(step, steps) / self._magnitude(earlier[0], steps),)
        if self.estimate == "spectral":
            return spectral_weights(step, earlier, steps, self.order)
        return taylor_weights(step, earlier) if self.estimate == "taylor" else (1.0,)

    def _magnitude(self, step: int, steps: int) -> float:
        """Return the magnitude at a step of an image, interpolated between the plan's steps."""
        place = min(step * self.steps / steps, self.steps - 1.0)
        low = int(place)
        high, share = min(low + 1, self.steps - 1), place - low
        return (1 - share) * self.magnitudes[low] + share * self.magnitudes[high]


def taylor_weights(step: int, earlier: Sequence[int]) -> Weights:
    """Return the weights of a Taylor expansion by divided differences.

    The order is as high as the number of residuals allows.

    Args:
        earlier: steps with stored residuals, latest first; 1 to 3.
    """
    ahead = step - earlier[0]
    if len(earlier) == 1:
        return (1.0,)
    slope = 1 / (earlier[0] - earlier[1])
    if len(earlier) == 2:
        return (1 + ahead * slope, -ahead * slope)
    before = 1 / (earlier[1] - earlier[2])
    bend = slope * ahead * ahead / 2
    return (
        1 + ahead * slope + bend * slope,
        -ahead * slope - bend * (slope + before),
        bend * before,
    )


def spectral_weights(step: int, earlier: Sequence[int], steps: int, order: int) -> Weights:
    """Return the weights of a least-squares fit of Chebyshev polynomials over the steps.

    The order is lower if there are too few residuals.

    Args:
        earlier: steps with stored residuals, latest first.
        steps: number of steps of the image, which become the interval [-1, 1].
        order: degree of the polynomial.
    """
    import numpy as np  # not for front ends

    degree = min(order, len(earlier) - 1)
    places = 2 * np.array([*earlier, step]) / max(1, steps - 1) - 1
    basis = np.polynomial.chebyshev.chebvander(places, degree)
    rows, target = basis[:-1], basis[-1]
    penalty = RIDGE * np.diag([0.0, *[1.0] * degree])
    weights = target @ np.linalg.solve(rows.T @ rows + penalty, rows.T)
    return tuple(float(weight) for weight in weights)
