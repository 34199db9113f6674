"""Training timesteps of an image's steps, by `timestep_spacing`, and checks of a request's steps.

Source: Lin et al. 2024, Common Diffusion Noise Schedules and Sample Steps are Flawed, table 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.sampling.base import Numbers
from models.sampling.beta_schedule import NoiseSchedule
from models.spec.option import OptionError

Timesteps = NDArray[np.floating[Any]]


def spaced(spacing: str, train_steps: int, steps: int, offset: int) -> Timesteps:
    """Return decreasing timesteps of one-step methods; the last may be the first training timestep.

    Linspace gives fractions, which DDIM rounds.
    """
    if spacing == "linspace":
        return np.linspace(0, train_steps - 1, steps)[::-1]
    if spacing == "leading":
        return (np.arange(steps) * (train_steps // steps))[::-1] + float(offset)
    return _trailing(train_steps, train_steps, steps)


def spaced_between(
    spacing: str, train_steps: int, steps: int, offset: int, last: int | None = None
) -> Timesteps:
    """Return decreasing timesteps of multistep methods: `steps` + 1 integers without the lowest.

    Args:
        last: number of training timesteps that remain after the noisiest are clipped.
    """
    top = train_steps if last is None else last
    if spacing == "linspace":
        return np.linspace(0, top - 1, steps + 1).round()[::-1][:-1]
    if spacing == "leading":
        return (np.arange(steps + 1) * (top // (steps + 1)))[::-1][:-1] + float(offset)
    return _trailing(top, train_steps, steps)


def _trailing(top: int, train_steps: int, steps: int) -> Timesteps:
    times: Timesteps = np.arange(top, 0, -train_steps / steps).round() - 1
    return times[:steps]  # rounding may add an entry below 0


def integer_timesteps(schedule: NoiseSchedule, steps: int) -> NDArray[np.int64]:
    """Return decreasing timesteps of methods that know only the training's timesteps.

    Raises: OptionError: more steps than timesteps, or an offset beyond the last one.
    """
    count = schedule.num_train_timesteps
    if steps > count:
        raise OptionError(
            "num_inference_steps", f"{steps} is more than the {count} of num_train_timesteps"
        )
    floats = spaced(schedule.timestep_spacing, count, steps, schedule.steps_offset)
    times = floats.round().astype(np.int64)
    if times.max() >= count:
        raise OptionError(
            "steps_offset",
            f"{schedule.steps_offset} leads beyond the last training timestep {count - 1} with "
            f"{steps} steps",
        )
    return times


def listed_timesteps(timesteps: Numbers, train_steps: int) -> NDArray[np.int64]:
    """Return a request's timesteps as integers.

    Raises: OptionError: they do not fall, or leave the training's range.
    """
    times = np.asarray(timesteps, np.int64)
    if not (np.diff(times) < 0).all() or not 0 <= times[-1] <= times[0]:
        raise OptionError("timesteps", "must fall and stay at 0 or above")
    if times[0] >= train_steps:
        raise OptionError("timesteps", f"must start below {train_steps}")
    return times


def first_step(steps: int, strength: float | None) -> int:
    """Return the first step that image to image runs; earlier ones are skipped.

    Source: Meng et al. 2022 (SDEdit), section 3; rounded as in diffusers' get_timesteps.

    Raises:
        OptionError: the strength leaves no step.
    """
    if strength is None:
        return 0
    if not 0 < strength <= 1:
        raise OptionError("strength", f"must be above 0 and at most 1, not {strength!r}")
    first = steps - min(int(steps * strength), steps)
    if first == steps:
        raise OptionError(
            "strength", f"{strength} leaves none of the {steps} steps; raise one of them"
        )
    return first


def check_request(
    steps: int,
    *,
    timesteps: Numbers | None = None,
    sigmas: Numbers | None = None,
    accepted: frozenset[str],
) -> None:
    """Check a request's steps, and its custom timesteps or sigmas.

    Raises: OptionError: no steps, or a list that the scheduler does not accept.

    Args:
        accepted: lists that the reference's scheduler accepts.
    """
    both = {"timesteps": timesteps, "sigmas": sigmas}
    given = {name: value for name, value in both.items() if value is not None}
    if len(given) > 1:
        raise OptionError("sigmas", "cannot be given together with timesteps")
    for name, value in given.items():
        if name not in accepted:
            raise OptionError(name, f"this scheduler does not accept custom {name}; remove them")
        if not len(value):
            raise OptionError(name, "must not be empty")
    if steps < 1:
        raise OptionError("num_inference_steps", f"must be at least 1, not {steps}")
