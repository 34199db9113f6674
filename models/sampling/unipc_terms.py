"""Coefficients of UniPC's predictor and corrector, in the B(h) form.

Every function takes alpha, sigma and lambda as columns of one update's points: the target t, then
s0, s1, … before it, as many as the order; in float32, in the reference's order of operations.

Source: Zhao et al. 2023 (UniPC), section 3 and appendix A; diffusers scheduling_unipc_multistep.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.sampling.base import Column
from models.sampling.dpm_terms import NO_STEP, distinct_nodes

Terms = dict[str, Any]
_HALF = np.float32(0.5)


@dataclass(frozen=True)
class _Update:
    """Factors that UniPC's predictor and corrector share."""

    latents: Any
    """Factor of the latents at s0."""
    integrand: Any
    """Factor of the integrand at s0."""
    scale: Any
    """Factor of the correction by differences of integrands: -alpha · B(h)."""
    ratios: Column
    """r_i: distances of the points from s0, in steps of h; the last is the target's 1."""
    matrix: Any
    moments: Any
    """Right side of the system for the differences' weights (eq. 5 of the paper): matrix · weights
    = moments."""


def _update(
    alpha: Column, sigma: Column, clock: Column, for_noise: bool, solver_type: str
) -> _Update:
    order = distinct_nodes(clock[1:])
    clock = clock[: order + 1]
    h = clock[0] - clock[1]
    ratios = np.append((clock[2:] - clock[1]) / h, np.float32(1))
    step = h if for_noise else -h
    growth = _expm1(step)
    bound = step if solver_type == "bh1" else growth
    outer, inner = (sigma, alpha) if for_noise else (alpha, sigma)
    return _Update(
        latents=inner[0] / inner[1],
        integrand=-outer[0] * growth,
        scale=-outer[0] * bound,
        ratios=ratios,
        matrix=np.stack([ratios**i for i in range(order)]),
        moments=_moments(step, growth, order) / bound,
    )


def _moments(step: Any, growth: Any, order: int) -> Column:
    """Compute UniPC's moments i! · phi_(i+1)(step) · step for i = 1, …, order."""
    moments = []
    factorial = 1
    phi = growth / step - 1
    for i in range(1, order + 1):
        moments.append(phi * factorial)
        factorial *= i + 1
        phi = phi / step - np.float32(1 / factorial)
    return np.array(moments, np.float32)


def _expm1(value: Any) -> Any:
    return np.float32(np.expm1(np.float64(value)))


def predictor_terms(
    alpha: Column, sigma: Column, clock: Column, for_noise: bool, solver_type: str
) -> Terms:
    """Return UniP's factors of the latents, of the integrand m0 at s0, and of each m_i - m0."""
    if clock[0] == clock[1]:
        return dict(NO_STEP)
    update = _update(alpha, sigma, clock, for_noise, solver_type)
    order = len(update.ratios)
    if order == 2:
        weights = np.array([_HALF])  # the paper's choice, exact to the same order
    else:
        weights = np.linalg.solve(update.matrix[:-1, :-1], update.moments[:-1])
    terms = {"latents": update.latents, "current": update.integrand}
    for i, weight in enumerate(weights):
        terms[f"predict_{i + 1}"] = update.scale * weight / update.ratios[i]
    return terms


def corrector_terms(
    alpha: Column, sigma: Column, clock: Column, for_noise: bool, solver_type: str
) -> Terms:
    """Return UniC's factors of the latents at s0, of m0, of each m_i - m0 and of m_t - m0.

    There are none between equal sigmas, where nothing is corrected.
    """
    if clock[0] == clock[1]:
        return {}
    update = _update(alpha, sigma, clock, for_noise, solver_type)
    order = len(update.ratios)
    weights = np.array([_HALF]) if order == 1 else np.linalg.solve(update.matrix, update.moments)
    terms = {
        "keep": 0.0,
        "correct_latents": update.latents,
        "correct_last": update.integrand,
        "correct_new": update.scale * weights[-1],
    }
    for i, weight in enumerate(weights[:-1]):
        terms[f"correct_{i + 1}"] = update.scale * weight / update.ratios[i]
    return terms
