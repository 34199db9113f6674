"""Coefficients of DPM-Solver's steps: of the latents, the integrands m0, m1 and m2, and the noise.

Every function takes alpha, sigma and lambda as columns of one step's points: [t, s0, s1, s2], the
target first, then as many as the order; in float32, in the reference's order of operations.

Source: diffusers scheduling_dpmsolver_multistep.py and scheduling_dpmsolver_singlestep.py, their
first, second and third order updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from models.sampling.base import Column
from models.spec.option import OptionError

Terms = dict[str, Any]
Slopes = tuple[list[Any], list[Any]]
"""Factors of the integrand's derivatives in steps of order 2, and of order 3."""
NO_STEP: Mapping[str, float] = {"latents": 1.0, "current": 0.0}
"""Factors of a step between equal sigmas, which leaves the latents as they are."""


def distinct_nodes(clock: Column) -> int:
    """Count a step's first points, newest first, up to one that is repeated or infinite.

    Further points do not define a polynomial, so that the step has a lower order, as at the start.
    The first point may be infinite.
    """
    repeated = (clock[1:] == clock[:-1]) | ~np.isfinite(clock[1:])
    return 1 + int(np.append(repeated, True).argmax())


def multistep_terms(
    algorithm: str, solver_type: str, alpha: Column, sigma: Column, clock: Column
) -> Terms:
    """Return DPM-Solver's factors of the latents, of m0, of m0 - m1 and m1 - m2, and of noise."""
    if clock[0] == clock[1]:
        return dict(NO_STEP)
    used = slice(1 + distinct_nodes(clock[1:]))
    alpha, sigma, clock = alpha[used], sigma[used], clock[used]
    terms, slopes = _ALGORITHMS[algorithm](alpha, sigma, clock, solver_type)
    return terms | differences(clock, slopes)


def singlestep_terms(
    algorithm: str, solver_type: str, alpha: Column, sigma: Column, clock: Column
) -> Terms:
    """Return the factors of the latents and the integrand mk at the oldest point, and of noise.

    weight_0 and weight_1 are the factors of m0 - mk and m1 - mk.
    """
    ends = [0, -1]
    if clock[0] == clock[-1]:
        return dict(NO_STEP)
    terms, slopes = _ALGORITHMS[algorithm](alpha[ends], sigma[ends], clock[ends], solver_type)
    return terms | group_weights(clock, slopes, solver_type)


def dpmsolver_pp(
    alpha: Column, sigma: Column, clock: Column, solver_type: str
) -> tuple[Terms, Slopes]:
    """Return DPM-Solver++'s factors; the integrand is the denoised latents.

    Source: Lu et al. 2022, eq. 9 to 12.
    """
    h = clock[0] - clock[1]
    decay = np.exp(-h) - 1
    slopes = [alpha[0] * (decay / h + 1), -alpha[0] * ((decay + h) / h**2 - np.float32(0.5))]
    middle = np.float32(-0.5) * (alpha[0] * decay)
    terms = {"latents": sigma[0] / sigma[1], "current": -(alpha[0] * decay)}
    return terms, slopes_of(solver_type, middle, slopes)


def dpmsolver(
    alpha: Column, sigma: Column, clock: Column, solver_type: str
) -> tuple[Terms, Slopes]:
    """Return DPM-Solver's factors; the integrand is the noise.

    Source: Lu et al. 2022, eq. 4.1 to 4.6.
    """
    h = clock[0] - clock[1]
    growth = np.exp(h) - 1
    slopes = [-sigma[0] * (growth / h - 1), -sigma[0] * ((growth - h) / h**2 - np.float32(0.5))]
    middle = np.float32(-0.5) * (sigma[0] * growth)
    terms = {"latents": alpha[0] / alpha[1], "current": -(sigma[0] * growth)}
    return terms, slopes_of(solver_type, middle, slopes)


def sde_dpmsolver_pp(
    alpha: Column, sigma: Column, clock: Column, solver_type: str
) -> tuple[Terms, Slopes]:
    """Return the factors of SDE-DPM-Solver++: added noise makes half of each step's descent."""
    h = clock[0] - clock[1]
    lost = 1 - np.exp(-2 * h)
    slopes = [
        alpha[0] * (lost / (-2 * h) + 1),
        alpha[0] * ((lost - 2 * h) / (2 * h) ** 2 - np.float32(0.5)),
    ]
    middle = np.float32(0.5) * (alpha[0] * lost)
    terms = {
        "latents": sigma[0] / sigma[1] * np.exp(-h),
        "current": alpha[0] * lost,
        "noise": sigma[0] * np.sqrt(lost),
    }
    return terms, slopes_of(solver_type, middle, slopes)


def sde_dpmsolver(
    alpha: Column, sigma: Column, clock: Column, solver_type: str
) -> tuple[Terms, Slopes]:
    """Return the factors of SDE-DPM-Solver.

    Raises: OptionError: the third order, which does not exist.
    """
    if len(clock) > 3:
        raise OptionError(
            "solver_order", "must be 2 at most with algorithm_type sde-dpmsolver, not 3"
        )
    h = clock[0] - clock[1]
    growth = np.exp(h) - 1
    slopes = [-2 * (sigma[0] * (growth / h - 1))]
    terms = {
        "latents": alpha[0] / alpha[1],
        "current": -2 * (sigma[0] * growth),
        "noise": sigma[0] * np.sqrt(np.exp(2 * h) - 1),
    }
    return terms, slopes_of(solver_type, -(sigma[0] * growth), slopes)


def slopes_of(solver_type: str, middle: Any, slopes: list[Any]) -> Slopes:
    """Return the factors of the integrand's derivatives in DPM-Solver steps of order 2 and 3."""
    return [middle if solver_type == "midpoint" else slopes[0]], slopes


def differences(clock: Column, slopes: Slopes) -> Terms:
    """Return the factors of m0 - m1 and m1 - m2 that estimate the integrand's derivatives.

    Args:
        slopes: for each order from 2 on, the factors of the first and second derivative.
    """
    order = len(clock) - 1
    if order == 1:
        return {}
    h = clock[0] - clock[1]
    ratio = (clock[1] - clock[2]) / h
    if order == 2:
        return {"difference_1": slopes[0][0] / ratio}
    older = (clock[2] - clock[3]) / h
    first, second = slopes[1]
    curve = (first * ratio + second) / (ratio + older)
    return {"difference_1": (first + curve) / ratio, "difference_2": -curve / older}


def group_weights(clock: Column, slopes: Slopes, solver_type: str) -> Terms:
    """Return the factors of m0 - mk and m1 - mk that estimate derivatives at the oldest point.

    Args:
        slopes: as in `differences`.
    """
    order = len(clock) - 1
    if order == 1:
        return {}
    h = clock[0] - clock[-1]
    r0 = (clock[1] - clock[-1]) / h
    if not r0 > 0:  # evaluated at the group's start only, or from an infinite one
        return {}
    r1 = (clock[2] - clock[-1]) / h
    if order == 2 or r1 in (0, r0):
        return {"weight_0": slopes[0][0] / r0}
    first, second = slopes[1]
    newest, middle = first, 0 * first
    if solver_type == "heun":
        newest = (2 * second - first * r1) / (r0 - r1)
        middle = (first * r0 - 2 * second) / (r0 - r1)
    return {"weight_0": newest / r0, "weight_1": middle / r1}


_ALGORITHMS: Mapping[str, Callable[[Column, Column, Column, str], tuple[Terms, Slopes]]] = {
    "dpmsolver++": dpmsolver_pp,
    "dpmsolver": dpmsolver,
    "sde-dpmsolver++": sde_dpmsolver_pp,
    "sde-dpmsolver": sde_dpmsolver,
}
