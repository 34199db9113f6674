"""Schedule of k-diffusion's methods: interpolated sigmas, or sigmas of another spacing.

Source: diffusers scheduling_lms_discrete.py, scheduling_heun_discrete.py and its siblings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from models.sampling.base import Column
from models.sampling.noisy import NoisySchedule
from models.sampling.sigmas import chosen_spacing, to_timesteps


class SpacedSteps(NamedTuple):
    """Timesteps and sigmas of an image's steps, in the reference's precision."""

    timesteps: Column
    """[n], possibly between training timesteps."""
    sigmas: Column
    """float32 [n + 1]; the last is 0."""
    log_table: Column
    """Logarithms of the training sigmas, for `to_timesteps`."""


@dataclass(frozen=True, kw_only=True)
class SpacedSchedule(NoisySchedule):
    """Base of schedulers with a choice of spacing: timesteps and sigmas."""

    use_karras_sigmas: bool = False
    use_exponential_sigmas: bool = False
    use_beta_sigmas: bool = False
    sigma_min: float | None = None
    """Lowest sigma of the three spacings above, instead of the schedule's own."""
    sigma_max: float | None = None

    HAS_KARRAS_ENDS: ClassVar[bool] = True
    """Whether Karras' spacing reads `sigma_min` and `sigma_max`, too; depends on the reference."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen_spacing(self)

    def spaced_steps(self, steps: int) -> SpacedSteps:
        """Return the timesteps and sigmas in the chosen spacing."""
        times = self.spaced_timesteps(steps)
        train = self.train_sigmas()
        log_table = np.log(train)
        sigmas = np.interp(times, np.arange(len(train)), train)
        if space := chosen_spacing(self):
            sigmas = space(*self._ends(sigmas), steps)
            times = to_timesteps(sigmas, log_table)
        table = np.append(sigmas, 0).astype(np.float32)
        return SpacedSteps(times, table, log_table)

    def _ends(self, sigmas: Column) -> tuple[float, float]:
        """Return the highest and the lowest sigma between which steps are spaced."""
        if self.use_karras_sigmas and not self.HAS_KARRAS_ENDS:
            return float(sigmas[0]), float(sigmas[-1])
        high = sigmas[0] if self.sigma_max is None else self.sigma_max
        low = sigmas[-1] if self.sigma_min is None else self.sigma_min
        return float(high), float(low)
