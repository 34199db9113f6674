"""Base of DPM-Solver, DEIS and UniPC: schedule, and half-log-SNR as time.

Source: Lu et al. 2022 (DPM-Solver), section 3.1; diffusers scheduling_dpmsolver_multistep.py and
scheduling_unipc_multistep.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from models.sampling.base import Column, Plan, per_row
from models.sampling.beta_schedule import NoiseSchedule, Table
from models.sampling.prediction import (
    noise_of_mixed,
    of_mixed,
    of_noisy,
    predicted,
    threshold_values,
    thresholded,
)
from models.sampling.sigmas import chosen_spacing
from models.sampling.solver import Latents, Solver
from models.spec.option import OptionError


@dataclass(frozen=True)
class MultistepStep(Solver):
    """Base of the multistep solvers (DPM-Solver, DEIS, UniPC)."""

    order: int = 2
    of_noise: bool = False
    """Whether the integral is over the predicted noise instead of the denoised latents."""
    thresholds: bool = False
    """Whether denoised latents are thresholded."""

    def integrand(
        self, latents: Latents, output: Latents, values: Mapping[str, Float[Array, " batch"]]
    ) -> tuple[Latents, Latents]:
        """Return the denoised latents and the integrand: the denoised latents, or the noise."""
        denoised = predicted(latents, output, values)
        if self.thresholds:
            denoised = thresholded(denoised, values)
        if not self.of_noise:
            return denoised, denoised
        if self.thresholds:
            alpha, sigma = (per_row(values[name], latents) for name in ("alpha", "sigma"))
            return denoised, (latents - alpha * denoised) / sigma
        return denoised, predicted(latents, output, values, of="noise_")


@dataclass(frozen=True, kw_only=True)
class MultistepSchedule(NoiseSchedule):
    """Base of the multistep schedulers: options; schedules are timesteps [n] and sigmas [n + 1]."""

    solver_order: int = 2
    thresholding: bool = False
    dynamic_thresholding_ratio: float = 0.995
    sample_max_value: float = 1.0
    lower_order_final: bool = True
    use_karras_sigmas: bool = False
    use_exponential_sigmas: bool = False
    use_beta_sigmas: bool = False
    sigma_min: float | None = None
    """Lowest sigma of the three spacings above, instead of the schedule's own."""
    sigma_max: float | None = None
    use_flow_sigmas: bool = False
    """Whether latents are (1 - sigma) · clean + sigma · noise, as in flow models."""
    flow_shift: float = 1.0
    final_sigmas_type: str = "zero"

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **NoiseSchedule.CHOICES,
        "prediction_type": ("epsilon", "flow_prediction", "sample", "v_prediction"),
    }
    RANGES: ClassVar[Mapping[str, tuple[float, float]]] = {"solver_order": (1, 3)}

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen_spacing(self)
        if (
            self.solves_for_noise
            and self.prediction_type == "flow_prediction"
            and not self.converts_flows
        ):
            raise OptionError(
                "prediction_type", "flow_prediction needs a method that solves for x0"
            )

    @property
    def name(self) -> str:
        """Name of the scheduler in requests."""
        raise NotImplementedError

    @property
    def stochastic(self) -> bool:
        """True if every step adds noise."""
        return False

    @property
    def solves_for_noise(self) -> bool:
        """True if the integral is over the predicted noise, not the denoised latents."""
        raise NotImplementedError

    @property
    def converts_flows(self) -> bool:
        """True if a method that solves for the noise accepts a flow's prediction."""
        return False

    @property
    def thresholds(self) -> bool:
        """True if denoised latents are thresholded."""
        return self.thresholding

    @property
    def step_options(self) -> tuple[int, bool, bool]:
        """Options that select the solver and its history; all others are in the plan's values."""
        return self.solver_order, self.solves_for_noise, self.thresholds

    def respaced(self, table: Table, steps: int) -> NDArray[np.float64]:
        """Return sigmas in the chosen spacing between the ends of a table (last entry highest)."""
        space = chosen_spacing(self)
        assert space is not None
        ends = (self.sigma_max, table[-1]), (self.sigma_min, table[0])
        high, low = (float(default if given is None else given) for given, default in ends)
        return space(high, low, steps)

    def mixed(self, sigmas: Column) -> tuple[Column, Column]:
        """Convert noise-to-signal ratios to alpha and sigma of alpha · clean + sigma · noise."""
        if self.use_flow_sigmas:
            return 1 - sigmas, sigmas
        alpha = 1 / np.sqrt(sigmas**2 + 1)
        return alpha, sigmas * alpha

    def flow_sigmas(self, steps: int) -> NDArray[np.float64]:
        """Return a flow's sigmas, decreasing from just below 1, shifted towards noise."""
        even = 1.0 - np.linspace(1, 1 / self.num_train_timesteps, steps + 1)
        shifted = self.flow_shift * even / (1 + (self.flow_shift - 1) * even)
        return shifted[::-1][:-1]

    def unclipped_timesteps(self, lowest: float) -> int:
        """Return the number of training timesteps whose half-log-SNR is at least `lowest`."""
        alphas_cumprod = self.finite_alphas_cumprod()
        lambdas = half_log_snr(np.sqrt(alphas_cumprod), np.sqrt(1 - alphas_cumprod))
        return self.num_train_timesteps - int(np.searchsorted(lambdas[::-1], np.float32(lowest)))

    def prediction_values(self, sigmas: Column) -> dict[str, Column]:
        """Return the values that `integrand` reads, one entry per step."""
        alpha, sigma = self.mixed(sigmas)
        if self.prediction_type == "flow_prediction":
            values = of_noisy("epsilon", sigmas)
        else:
            values = of_mixed(self.prediction_type, alpha, sigma)
        if self.solves_for_noise:
            values |= noise_of_mixed(self.prediction_type, alpha, sigma)
            values |= {"alpha": alpha, "sigma": sigma}
        if self.thresholds:
            values |= threshold_values(self, len(sigmas))
        return values

    def multistep_plan(
        self, timesteps: Any, sigmas: Column, first: int, values: Mapping[str, Column]
    ) -> Plan:
        """Build a multistep method's plan from step `first` on; `values` start at that step."""
        now = sigmas[first:-1]
        alpha, sigma = self.mixed(now)
        return Plan(
            timesteps=np.asarray(timesteps[first:], np.float32),
            input_scale=np.ones(len(now), np.float32),
            values={**self.prediction_values(now), **values},
            draws=np.full(len(now), self.stochastic),
            init_noise_sigma=1.0,
            clean_scale=np.append(alpha, np.float32(1)),
            noise_scale=np.append(sigma, np.float32(0)),
        )


def half_log_snr(alpha: Column, sigma: Column) -> Column:
    """Compute lambda = log alpha - log sigma; infinite at sigma 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _log(alpha) - _log(sigma)


def _log(values: Column) -> Column:
    return np.log(values.astype(np.float64)).astype(np.float32)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """Convert one mapping per step into one array of all steps per name."""
    return {name: np.array([row[name] for row in rows], np.float32) for name in rows[0]}
