"""Schedule of the methods whose latents are clean + sigma · noise.

Source: diffusers scheduling_euler_discrete.py and scheduling_euler_ancestral_discrete.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.sampling.base import Column, Plan
from models.sampling.beta_schedule import NoiseSchedule
from models.sampling.prediction import of_noisy
from models.sampling.timesteps import spaced
from models.spec.option import OptionError


@dataclass(frozen=True, kw_only=True)
class NoisySchedule(NoiseSchedule):
    """Base of the Euler schedulers: timesteps and interpolated sigmas."""

    name: ClassVar[str]

    def spaced_timesteps(self, steps: int) -> Column:
        """Return float32 timesteps, possibly between training timesteps."""
        times = spaced(self.timestep_spacing, self.num_train_timesteps, steps, self.steps_offset)
        return times.astype(np.float32)

    def noisy_plan(self, timesteps: Column, sigmas: Column, first: int, **more: Column) -> Plan:
        """Build the plan of an Euler method from step `first` on.

        Args:
            sigmas: one per timestep, and the last step's target.
            more: values in addition to sigma and the prediction's, one per timestep.
        """
        now = sigmas[first:-1]
        if not (now > 0).all():
            raise OptionError("sigmas", "must stay above 0 before the last one")
        rest = {name: column[first:] for name, column in more.items()}
        return Plan(
            timesteps=timesteps[first:],
            input_scale=1 / np.sqrt(now**2 + 1),
            values={**of_noisy(self.prediction_type, now), "sigma": now, **rest},
            draws=np.full(len(now), "noise" in more),
            init_noise_sigma=self._init_noise_sigma(sigmas.max()),
            clean_scale=np.ones(len(now) + 1, np.float32),
            noise_scale=np.append(now, np.float32(0)),
        )

    def _init_noise_sigma(self, greatest: np.float32) -> float:
        """Return the standard deviation of the initial latents.

        Leading spacing skips the top timesteps, so the latents also contain an image.
        """
        if self.timestep_spacing == "leading":
            return float(np.sqrt(greatest**2 + 1))
        return float(greatest)
