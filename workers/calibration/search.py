"""Search for step plans: the full steps that minimize the predicted error, for each number of them.

The error of an estimate is a quadratic form of the residuals' inner products. So only these are
recorded (steps x steps per image), and plans are compared without generating images. Errors of
steps are added as if each persisted unchanged to the end, which is an approximation. The true error
is measured afterwards on generated images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from models.spec.step_plan import Estimate, PlannedCache

MAX_GAP = 12
"""Maximum number of consecutive skipped steps."""


@dataclass(frozen=True)
class StepRecording:
    """Residuals and latent changes recorded from exactly generated images."""

    products: Float[np.ndarray, "images steps steps"]
    """Inner products of the blocks' residuals of two steps."""
    moves: Float[np.ndarray, "images steps"]
    """Norm of each step's change of the latents."""

    @property
    def steps(self) -> int:
        """Number of denoising steps of the recorded images."""
        return int(self.moves.shape[1])

    @property
    def magnitudes(self) -> tuple[float, ...]:
        """Mean norm of the blocks' residual per step, relative to the first step."""
        norms = np.sqrt(self.products.diagonal(axis1=1, axis2=2)).mean(axis=0)
        return tuple(round(float(norm / norms[0]), 4) for norm in norms)

    def miss(self, step: int, behind: Sequence[int], weights: Sequence[float]) -> float:
        """Return the error of an estimate in the latents, averaged over images.

        Args:
            behind: the full steps that it combines, the latest first.
        """
        steps, share = [step, *behind], np.array([1.0, *(-weight for weight in weights)])
        products = self.products[:, steps][:, :, steps]
        missed = np.maximum(np.einsum("i,nij,j->n", share, products, share), 0)
        norms = np.maximum(self.products[:, step, step], np.finfo(float).tiny)
        return float((np.sqrt(missed / norms) * self.moves[:, step]).mean())


@dataclass(frozen=True)
class Method:
    """Estimate that replaces the blocks' residual in skipped steps."""

    estimate: Estimate
    order: int = 1

    def plan(self, whole: Sequence[int], recording: StepRecording) -> PlannedCache:
        """Return the step-cache plan with these full steps and this estimate."""
        return PlannedCache(
            kind="planned",
            steps=recording.steps,
            whole=tuple(whole),
            estimate=self.estimate,
            order=self.order,
            magnitudes=recording.magnitudes if self.estimate == "magnitude" else (),
        )


METHODS = (
    *(Method("reuse"), Method("magnitude"), Method("taylor"), Method("taylor", 2)),
    Method("spectral", 2),
)

Behind = tuple[int, ...]
Paths = dict[Behind, tuple[float, tuple[int, ...]]]
"""Best path to each state: its error, and its full steps."""


def best_plans(
    recording: StepRecording, method: Method, turns: Sequence[bool]
) -> dict[int, PlannedCache]:
    """Return the best plan for each number of full steps, in ascending order.

    Uses dynamic programming over the last full steps, on which an estimate depends.

    Args:
        turns: for each step, whether earlier residuals are invalid there.
    """
    losses = _Losses(recording, method, turns)
    states: Paths = {(0,): (0.0, (0,))}
    plans: dict[int, PlannedCache] = {}
    for count in range(1, recording.steps + 1):
        ends = [(lost + end, whole) for behind, (lost, whole) in states.items()
                if (end := losses.to(behind, recording.steps)) is not None]  # fmt: skip
        if ends:
            plans[count] = method.plan(min(ends)[1], recording)
        states = _further(states, losses)
    return plans


def _further(states: Paths, losses: _Losses) -> Paths:
    """Extend each path of full steps by one more full step."""
    paths: Paths = {}
    for behind, (lost, whole) in states.items():
        for step in range(behind[0] + 1, losses.steps):
            more = losses.to(behind, step)
            if more is None:
                break
            key = losses.behind(step, behind)
            if key not in paths or lost + more < paths[key][0]:
                paths[key] = lost + more, (*whole, step)
    return paths


class _Losses:
    """Memoized errors of the skipped steps between two full steps."""

    def __init__(self, recording: StepRecording, method: Method, turns: Sequence[bool]) -> None:
        self.steps, self._turns = recording.steps, turns
        self._recording, self._plan = recording, method.plan([0], recording)
        self._known: dict[tuple[int, Behind], float] = {}

    def behind(self, step: int, behind: Behind) -> Behind:
        """Return the latest full steps on which an estimate depends, after adding `step`."""
        return (step,) if self._turns[step] else (step, *behind)[: self._plan.depth]

    def to(self, behind: Behind, step: int) -> float | None:
        """Return the error of the skipped steps before a full one; None: skipping is forbidden."""
        left_out = range(behind[0] + 1, step)
        if len(left_out) > MAX_GAP or any(self._turns[skipped] for skipped in left_out):
            return None
        return sum(self._loss(skipped, behind) for skipped in left_out)

    def _loss(self, step: int, behind: Behind) -> float:
        key = step, behind
        if key not in self._known:
            weights = self._plan.estimate_weights(step, behind, self.steps)
            self._known[key] = self._recording.miss(step, behind[: len(weights)], weights)
        return self._known[key]


def numbers_of_whole_steps(steps: int) -> list[int]:
    """Return the numbers of full steps to try, from an eighth to three quarters of all steps."""
    shares = (1 / 8, 1 / 6, 1 / 5, 1 / 4, 0.3, 0.36, 0.43, 0.5, 0.6, 0.75)
    return sorted({max(2, round(share * steps)) for share in shares} & {*range(steps)})
