"""Timesteps of methods distilled to a few steps (LCM, TCD): some of the distillation's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.sampling.base import Numbers
from models.sampling.beta_schedule import NoiseSchedule
from models.sampling.timesteps import listed_timesteps
from models.spec.option import OptionError


@dataclass(frozen=True, kw_only=True)
class DistilledSchedule(NoiseSchedule):
    """Options of the schedulers of distilled models (LCM, TCD), with the distillation's spacing."""

    beta_start: float = 0.00085
    beta_end: float = 0.012
    beta_schedule: str = "scaled_linear"
    timestep_spacing: str = "leading"
    original_inference_steps: int = 50
    """Timesteps at which the model was distilled; an image uses some of them."""

    def distilled_timesteps(self, steps: int, timesteps: Numbers | None) -> NDArray[np.int64]:
        """Return evenly spaced timesteps of the distillation, or the request's timesteps.

        Raises: OptionError: too many steps, or timesteps that do not fall.
        """
        distilled = self._distilled()
        if timesteps is not None:
            return listed_timesteps(timesteps, self.num_train_timesteps)
        if steps > len(distilled):
            raise OptionError(
                "num_inference_steps",
                f"{steps} is more than the {len(distilled)} of original_inference_steps",
            )
        indices = np.floor(np.linspace(0, len(distilled), steps, endpoint=False)).astype(np.int64)
        return distilled[::-1][indices]

    def _distilled(self) -> NDArray[np.int64]:
        if self.original_inference_steps > self.num_train_timesteps:
            raise OptionError(
                "original_inference_steps",
                f"{self.original_inference_steps} is more than the {self.num_train_timesteps} of "
                "num_train_timesteps",
            )
        stride = self.num_train_timesteps // self.original_inference_steps
        return np.arange(1, self.original_inference_steps + 1) * stride - 1
