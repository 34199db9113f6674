"""Flow-matching schedules: a checkpoint's scheduler config and a request become a table of sigmas.

Runs on the host before the first step, in NumPy, with the reference's order of operations and
precision: a sigma that differs by an ulp changes every later step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.sampling.options import check_options
from models.sampling.sigmas import chosen_spacing
from models.spec.option import OptionError

Sigmas = NDArray[np.float32]
Floats = NDArray[np.floating[Any]]
Schedule = TypeVar("Schedule", bound="FlowMatchSchedule")


@dataclass(frozen=True)
class FlowMatchSchedule:
    """Config of a FlowMatchEulerDiscreteScheduler (`scheduler_config.json`), with its defaults.

    Source: Esser et al. 2024 (SD3), section 5.3.2 for the shift; diffusers
    scheduling_flow_match_euler_discrete.py for the order of its parts.
    """

    num_train_timesteps: int = 1000
    shift: float = 1.0
    """Static shift; unused if the shift is dynamic."""
    use_dynamic_shifting: bool = False
    """Whether the shift grows with the number of image tokens."""
    base_shift: float = 0.5
    max_shift: float = 1.15
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096
    shift_terminal: float | None = None
    """Last sigma, to which the schedule is stretched; None: not stretched."""
    time_shift_type: str = "exponential"
    use_karras_sigmas: bool = False
    use_exponential_sigmas: bool = False
    use_beta_sigmas: bool = False
    invert_sigmas: bool = False
    stochastic_sampling: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        if self.time_shift_type not in _TIME_SHIFTS:
            raise OptionError(
                "time_shift_type",
                f"{self.time_shift_type!r} must be one of {sorted(_TIME_SHIFTS)}",
            )
        for unserved in ("invert_sigmas", "stochastic_sampling"):
            if getattr(self, unserved):
                raise OptionError(unserved, "is not supported in scheduler_config.json")
        chosen_spacing(self)

    @classmethod
    def from_dict(cls: type[Schedule], config: Mapping[str, Any]) -> Schedule:
        """Read a checkpoint's config; keys of other schedulers are ignored.

        Raises: ValueError: an unsupported value.
        """
        names = {field.name for field in fields(cls)}
        try:
            return cls(**{key: value for key, value in config.items() if key in names})
        except ValueError as error:
            raise ValueError(f"scheduler/scheduler_config.json: {error}") from None

    def sigmas(
        self,
        steps: int,
        image_tokens: int,
        custom: Sequence[float] | None = None,
        mu: float | None = None,
    ) -> Sigmas:
        """Return one sigma per step, decreasing from 1, and a final 0: [steps + 1].

        Args:
            image_tokens: packed latents of the image, which determine a dynamic shift.
            custom: sigmas to use instead of evenly spaced ones; they are shifted too.
            mu: dynamic shift computed by the pipeline; None: by the config, from the tokens.
        """
        even = np.linspace(1.0, 1 / steps, steps) if custom is None else np.asarray(custom)
        return self.finished(self._shift(even.astype(np.float32), image_tokens, mu))

    def finished(self, shifted: Floats) -> Sigmas:
        """Stretch and space shifted sigmas of a flow by the config, and append 0: [steps + 1]."""
        rest = 1 - shifted
        if self.shift_terminal and rest[-1]:  # a single sigma of 1 leaves nothing to stretch
            shifted = 1 - rest / (rest[-1] / (1 - self.shift_terminal))
        if space := chosen_spacing(self):
            shifted = space(float(shifted[0]), float(shifted[-1]), len(shifted))
        return np.append(shifted.astype(np.float32), np.float32(0))

    def statically_shifted(self, sigmas: Floats) -> Floats:
        """Shift a flow's sigmas towards noise by the config's `shift`, in their own precision."""
        return self.shift * sigmas / (1 + (self.shift - 1) * sigmas)

    def _shift(self, sigmas: Sigmas, image_tokens: int, mu: float | None) -> Floats:
        if not self.use_dynamic_shifting:
            return self.statically_shifted(sigmas)
        if mu is None:
            slope = (self.max_shift - self.base_shift) / (
                self.max_image_seq_len - self.base_image_seq_len
            )
            mu = image_tokens * slope + (self.base_shift - slope * self.base_image_seq_len)
        weight = _TIME_SHIFTS[self.time_shift_type](mu)
        return weight / (weight + (1 / sigmas - 1))


_TIME_SHIFTS: Mapping[str, Callable[[float], float]] = {
    "exponential": math.exp,
    "linear": lambda mu: mu,
}

MANY_TOKENS = 4300
"""Image tokens above which FLUX.2's shift does not depend on the number of steps."""


def empirical_mu(tokens: int, steps: int) -> float:
    """Return FLUX.2's dynamic shift for a number of image tokens and steps.

    Linear in the tokens for 10 and for 200 steps, and interpolated over the steps. Source: Black
    Forest Labs, FLUX.2 (src/flux2/sampling.py, compute_empirical_mu).
    """
    of_200 = 0.00016927 * tokens + 0.45666666
    if tokens > MANY_TOKENS:
        return of_200
    of_10 = 8.73809524e-05 * tokens + 1.89833333
    slope = (of_200 - of_10) / 190.0
    return slope * steps + (of_200 - 200.0 * slope)


def img2img_start(steps: int, strength: float) -> int:
    """Return the first step that image to image runs; earlier ones are skipped.

    Source: Meng et al. 2022 (SDEdit), section 3; rounded as in diffusers' get_timesteps.
    """
    return int(max(steps - min(steps * strength, steps), 0))
