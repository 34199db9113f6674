"""Number of network evaluations of a scheduler's steps. No JAX: front ends import this module."""

from __future__ import annotations

from pydantic import Field

from models.spec.frozen import FrozenModel


class Evaluations(FrozenModel):
    """Number of network evaluations that a scheduler's steps cost; each is a step of the engine."""

    per_step: int = Field(default=1, ge=1)
    more: int = 0
    """Evaluations in addition to those of all steps; negative: fewer."""
    min_steps: int = Field(default=1, ge=1)
    """Minimum `num_inference_steps`."""

    def count(self, steps: int) -> int:
        """Return the network evaluations of that many requested steps."""
        return self.per_step * steps + self.more if steps else 0


ONE_A_STEP = Evaluations()
