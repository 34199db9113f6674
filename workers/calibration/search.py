"""Search for plans: for each number of whole steps, those that lose least by recorded residuals.

What an estimate misses is a quadratic form of the residuals' inner products, so that these alone
are recorded, a square of numbers an image, and plans are compared without drawing any. Errors of
steps are added up as if each were carried to the end unchanged, which none is: what a plan costs is
measured afterwards, by drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from models.spec.step_plan import Estimate, PlannedCache

MAX_GAP = 12
"""Left-out steps in a row, at the most."""


@dataclass(frozen=True)
class StepRecording:
    """Recorded residuals and moves of exactly drawn images."""

    products: Float[np.ndarray, "images steps steps"]
    """Inner products of what the blocks added in two steps."""
    moves: Float[np.ndarray, "images steps"]
    """Norm of what each step added to the latents."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.moves.shape[1]

    @property
    def magnitudes(self) -> tuple[float, ...]:
        """Mean magnitude of what the blocks added, of each step; 1 of the first."""
        norms = np.sqrt(self.products.diagonal(axis1=1, axis2=2)).mean(axis=0)
        return tuple(round(float(norm / norms[0]), 4) for norm in norms)

    def miss(self, step: int, behind: Sequence[int], weights: Sequence[float]) -> float:
        """Return the part of the latents that an estimate misses, in the mean over images.

        Args:
            behind: the whole steps that it weighs, the latest first.
        """
        at, share = [step, *behind], np.array([1.0, *(-weight for weight in weights)])
        products = self.products[:, at][:, :, at]
        missed = np.maximum(np.einsum("i,nij,j->n", share, products, share), 0)
        own = np.maximum(self.products[:, step, step], np.finfo(float).tiny)
        return float((np.sqrt(missed / own) * self.moves[:, step]).mean())


@dataclass(frozen=True)
class Method:
    """Kind of estimate."""

    estimate: Estimate
    order: int = 1

    def plan(self, whole: Sequence[int], recording: StepRecording) -> PlannedCache:
        """Return the plan with those whole steps."""
        return PlannedCache(
            kind="planned",
            steps=recording.steps,
            whole=tuple(whole),
            estimate=self.estimate,
            order=self.order,
            magnitudes=recording.magnitudes if self.estimate == "magnitude" else (),
        )


METHODS = (Method("reuse"), Method("magnitude"), Method("taylor"), Method("taylor", 2))

Behind = tuple[int, ...]
Paths = dict[Behind, tuple[float, tuple[int, ...]]]
"""Best way to each state: what it has lost, and its whole steps."""


def best_plans(
    recording: StepRecording, method: Method, turns: Sequence[bool]
) -> dict[int, PlannedCache]:
    """Return the best plan by its number of whole steps, from the fewest on.

    Dynamic programming over the last whole steps that an estimate looks back to.

    Args:
        turns: for each step whether what was kept before it is of no use there.
    """
    losses = _Losses(recording, method, turns)
    states: Paths = {(0,): (0.0, (0,))}
    found: dict[int, PlannedCache] = {}
    for count in range(1, recording.steps + 1):
        ends = [(lost + end, whole) for behind, (lost, whole) in states.items()
                if (end := losses.to(behind, recording.steps)) is not None]  # fmt: skip
        if ends:
            found[count] = method.plan(min(ends)[1], recording)
        states = _further(states, losses)
    return found


def _further(states: Paths, losses: _Losses) -> Paths:
    """Return the states with one whole step more."""
    found: Paths = {}
    for behind, (lost, whole) in states.items():
        for step in range(behind[0] + 1, losses.steps):
            more = losses.to(behind, step)
            if more is None:
                break
            key = losses.behind(step, behind)
            if key not in found or lost + more < found[key][0]:
                found[key] = lost + more, (*whole, step)
    return found


class _Losses:
    """Losses between whole steps, each found once."""

    def __init__(self, recording: StepRecording, method: Method, turns: Sequence[bool]) -> None:
        self.steps, self._turns = recording.steps, turns
        self._recording, self._plan = recording, method.plan([0], recording)
        self._known: dict[tuple[int, Behind], float] = {}

    def behind(self, step: int, behind: Behind) -> Behind:
        """Return the last whole steps once that one is."""
        return (step,) if self._turns[step] else (step, *behind)[: self._plan.depth]

    def to(self, behind: Behind, step: int) -> float | None:
        """Return the loss of all steps up to a whole one; None: they cannot all be left out."""
        left_out = range(behind[0] + 1, step)
        if len(left_out) > MAX_GAP or any(self._turns[one] for one in left_out):
            return None
        return sum(self._loss(one, behind) for one in left_out)

    def _loss(self, step: int, behind: Behind) -> float:
        key = step, behind
        if key not in self._known:
            weights = self._plan.estimated(step, behind, self.steps)
            self._known[key] = self._recording.miss(step, behind[: len(weights)], weights)
        return self._known[key]


def numbers_of_whole_steps(steps: int) -> list[int]:
    """Return the numbers of whole steps that are tried: an eighth to three quarters of all."""
    shares = (1 / 8, 1 / 6, 1 / 5, 1 / 4, 0.3, 0.36, 0.43, 0.5, 0.6, 0.75)
    return sorted({max(2, round(share * steps)) for share in shares} & {*range(steps)})
