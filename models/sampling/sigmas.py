"""Spacings of sigmas between the highest and the lowest, and conversion of sigmas to timesteps.

Host arithmetic in float64, in the reference's order of operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.spec.option import OptionError

Floats = NDArray[np.floating[Any]]
Spacing = Callable[[float, float, int], NDArray[np.float64]]


def karras(first: float, last: float, count: int, rho: float = 7.0) -> NDArray[np.float64]:
    """Space sigmas evenly in sigma ** (1 / rho). Source: Karras et al. 2022 (EDM), eq. 5."""
    ramp = np.linspace(0, 1, count)
    low, high = last ** (1 / rho), first ** (1 / rho)
    sigmas: NDArray[np.float64] = (high + ramp * (low - high)) ** rho
    return sigmas


def exponential(first: float, last: float, count: int) -> NDArray[np.float64]:
    """Space sigmas evenly in their logarithm."""
    return np.exp(np.linspace(math.log(first), math.log(last), count))


def beta(first: float, last: float, count: int) -> NDArray[np.float64]:
    """Space sigmas by quantiles of the distribution Beta(0.6, 0.6).

    Source: Lee et al. 2024, Beta Sampling is All You Need.
    """
    from scipy.stats import beta as distribution  # takes a second, and few checkpoints need it

    quantiles: NDArray[np.float64] = distribution.ppf(1 - np.linspace(0, 1, count), 0.6, 0.6)
    return last + quantiles * (first - last)


SPACINGS: Mapping[str, Spacing] = {
    "use_karras_sigmas": karras,
    "use_exponential_sigmas": exponential,
    "use_beta_sigmas": beta,
}
"""Spacings by the option that selects them; at most one may be set."""


def chosen_spacing(options: object) -> Spacing | None:
    """Return the spacing selected by a flag of `SPACINGS`, or None.

    Raises: OptionError: more than one is set.
    """
    names = [name for name in SPACINGS if getattr(options, name)]
    if len(names) > 1:
        raise OptionError(names[0], f"cannot be true together with {', '.join(names[1:])}")
    return SPACINGS[names[0]] if names else None


def to_timesteps(sigmas: Floats, log_table: Floats) -> Floats:
    """Convert sigmas to fractional timesteps, linear in log sigma between the table's entries.

    Args:
        log_table: logarithms of the training sigmas, one per timestep.

    Source: `_sigma_to_t` of diffusers scheduling_euler_discrete.py. One sigma at a time, as there:
    an element keeps its own precision.
    """
    return np.array([_to_timestep(sigma, log_table) for sigma in sigmas])


def _to_timestep(sigma: Any, log_table: Floats) -> np.floating[Any]:
    log_sigma = np.log(np.maximum(sigma, 1e-10))
    not_above = np.flatnonzero(log_sigma - log_table >= 0)
    low = min(int(not_above[-1]) if not_above.size else 0, len(log_table) - 2)
    weight = (log_table[low] - log_sigma) / (log_table[low] - log_table[low + 1])
    weight = np.clip(weight, 0, 1)
    timestep: np.floating[Any] = (1 - weight) * low + weight * (low + 1)
    return timestep
