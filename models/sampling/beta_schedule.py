"""Discrete noise schedule of a network's training: betas, and tables computed from them.

Float32 in torch's order of operations, because every sigma and timestep is read from these tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from models.sampling.options import check_options
from models.spec.option import OptionError

Table = NDArray[np.float32]
SPACINGS = ("leading", "linspace", "trailing")


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """Noise schedule of diffusers' discrete schedulers, with their names and defaults.

    Source: Ho et al. 2020 (DDPM); Lin et al. 2024, Common Diffusion Noise Schedules and Sample
    Steps are Flawed, for the zero-terminal SNR and the spacings (table 2).
    """

    num_train_timesteps: int = 1000
    beta_start: float = 0.0001
    beta_end: float = 0.02
    beta_schedule: str = "linear"
    trained_betas: tuple[float, ...] | None = None
    """Explicit betas instead of `beta_schedule`."""
    prediction_type: str = "epsilon"
    """Network's prediction: the noise, the clean sample, or v (Salimans and Ho 2022)."""
    timestep_spacing: str = "linspace"
    steps_offset: int = 0
    """Added to the timesteps of leading spacing."""
    rescale_betas_zero_snr: bool = False
    """Whether the last training timestep is pure noise."""

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "beta_schedule": ("linear", "scaled_linear", "squaredcos_cap_v2"),
        "prediction_type": ("epsilon", "sample", "v_prediction"),
        "timestep_spacing": SPACINGS,
        "final_sigmas_type": ("sigma_min", "zero"),
    }

    def __post_init__(self) -> None:
        check_options(self)
        if self.trained_betas is not None and len(self.trained_betas) != self.num_train_timesteps:
            raise OptionError(
                "trained_betas",
                f"has {len(self.trained_betas)} entries, not the {self.num_train_timesteps} of "
                "num_train_timesteps",
            )

    def betas(self) -> Table:
        """Return the noise variance beta of each training timestep."""
        if self.trained_betas is not None:
            betas = np.asarray(self.trained_betas, np.float32)
        else:
            betas = _BETAS[self.beta_schedule](
                self.beta_start, self.beta_end, self.num_train_timesteps
            )
        return zero_terminal_snr(betas) if self.rescale_betas_zero_snr else betas

    def alphas_cumprod(self) -> Table:
        """Return the remaining share of the clean image's variance at each training timestep."""
        return _cumprod(np.float32(1) - self.betas())

    def finite_alphas_cumprod(self) -> Table:
        """Return `alphas_cumprod`, nonzero at zero SNR: the reference's top sigma is then 4096."""
        alphas_cumprod = self.alphas_cumprod()
        if self.rescale_betas_zero_snr:
            alphas_cumprod[-1] = 2**-24
        return alphas_cumprod

    def train_sigmas(self) -> Table:
        """Return the ratio of noise to signal at each training timestep, increasing."""
        alphas_cumprod = self.finite_alphas_cumprod()
        sigmas: Table = np.sqrt((1 - alphas_cumprod) / alphas_cumprod)
        return sigmas


def zero_terminal_snr(betas: Table) -> Table:
    """Shift and scale betas so that the last timestep has no signal.

    Source: Lin et al. 2024, algorithm 1.
    """
    roots = np.sqrt(_cumprod(1 - betas))
    first, last = roots[0], roots[-1]
    alphas_bar = ((roots - last) * (first / (first - last))) ** 2
    alphas = np.concatenate([alphas_bar[:1], alphas_bar[1:] / alphas_bar[:-1]])
    return 1 - alphas


def linspace(first: float, last: float, count: int) -> Table:
    """Compute torch.linspace in float32: from both ends, with one rounding for product and sum."""
    low, high = np.float32(first), np.float32(last)
    step = np.float64((high - low) / np.float32(max(count - 1, 1)))
    index = np.arange(count)
    rising = (low + step * index).astype(np.float32)
    falling = (high - step * (count - 1 - index)).astype(np.float32)
    return np.where(index < count // 2, rising, falling)


def _cumprod(factors: Table) -> Table:
    """Compute torch.cumprod as on CPU, with the running product in double."""
    return np.cumprod(factors.astype(np.float64)).astype(np.float32)


def _scaled_linear(start: float, end: float, count: int) -> Table:
    """Return betas whose square root is linear, as in the training of latent diffusion models."""
    return linspace(start**0.5, end**0.5, count) ** 2


def _cosine(start: float, end: float, count: int) -> Table:
    """Return betas of the cosine schedule.

    Source: Nichol and Dhariwal 2021, eq. 17, capped at 0.999.
    """

    def alpha_bar(time: float) -> float:
        return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

    ratios = (alpha_bar((i + 1) / count) / alpha_bar(i / count) for i in range(count))
    return np.array([min(1 - ratio, 0.999) for ratio in ratios], np.float32)


_BETAS: Mapping[str, Callable[[float, float, int], Table]] = {
    "linear": linspace,
    "scaled_linear": _scaled_linear,
    "squaredcos_cap_v2": _cosine,
}
