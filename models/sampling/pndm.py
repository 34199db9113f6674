"""Pseudo linear multistep method (PLMS) of PNDM, which evaluates its second timestep twice.

Source: Liu et al. 2022 (PNDM), eq. 9 and 12; diffusers scheduling_pndm.py, with skip_prk_steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from models.sampling.base import Column, Numbers, Plan, per_row
from models.sampling.beta_schedule import NoiseSchedule
from models.sampling.prediction import of_mixed, predicted
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import check_request, first_step, integer_timesteps
from models.spec.evaluations import Evaluations
from models.spec.option import OptionError

_OUTPUTS = 4
"""Number of network outputs that a step uses."""
_WEIGHTS = (
    (1.0, 0.0, 0.0, 0.0),
    (1 / 2, 1 / 2, 0.0, 0.0),
    (3 / 2, -1 / 2, 0.0, 0.0),
    (23 / 12, -16 / 12, 5 / 12, 0.0),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)
"""Weights of the outputs, the newest first, in the first evaluations; the last row repeats."""
_REPEAT = 1
"""Evaluation that repeats the step of the one before, from its latents."""


@dataclass(frozen=True)
class PNDMStep(Solver):
    """Solver of PLMS: a transfer along the weighted sum of the last outputs."""

    METHOD: ClassVar[str] = "pndm"

    def begin(self, latents: Float[Array, "*shape"]) -> History:
        """Return the initial history: zeros for earlier outputs, newest first, and latents."""
        names = ("start", *(f"previous_{i}" for i in range(1, _OUTPUTS)))
        return {name: jnp.zeros_like(latents) for name in names}

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Apply one PLMS step, eq. 9; the repeated evaluation starts from the first latents."""
        term = {name: per_row(value, latents) for name, value in values.items()}
        repeats = term["repeats"] > 0
        recent = [output, *(history[f"previous_{i}"] for i in range(1, _OUTPUTS))]
        total = term["weight_0"] * output
        for i in range(1, _OUTPUTS):
            total = total + term[f"weight_{i}"] * recent[i]
        start = jnp.where(repeats, history["start"], latents)
        predicted_noise = term["noise_out"] * total + term["noise_skip"] * start
        following = term["latents"] * start - term["transfer"] * predicted_noise
        history_now = {
            f"previous_{i}": jnp.where(repeats, recent[i], recent[i - 1])
            for i in range(1, _OUTPUTS)
        }
        denoised = predicted(latents, output, values)
        return SolverOutput(following, denoised, {"start": start, **history_now})


@dataclass(frozen=True, kw_only=True)
class PNDM(NoiseSchedule):
    """Equivalent of diffusers' PNDMScheduler with skip_prk_steps, as checkpoints set it."""

    timestep_spacing: str = "leading"
    set_alpha_to_one: bool = False
    """Whether the last step ends at clean latents, not at those of the first training timestep."""
    skip_prk_steps: bool = True
    """Whether the first steps are linear, not Runge-Kutta; the latter are not served."""

    name: ClassVar[str] = "pndm"
    solver: ClassVar[Solver] = PNDMStep()
    EVALUATIONS: ClassVar[Evaluations] = Evaluations(more=1, min_steps=2)
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset()
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **NoiseSchedule.CHOICES,
        "prediction_type": ("epsilon", "v_prediction"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.skip_prk_steps:
            raise OptionError("skip_prk_steps", "must be true: Runge-Kutta steps are not served")

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`: one evaluation more than steps.

        As in the reference, image to image repeats its own first step, at whatever timestep
        follows.
        """
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        if steps < 2:
            raise OptionError("num_inference_steps", "must be at least 2 with pndm")
        times = integer_timesteps(self, steps)
        times = np.concatenate([times[:2], times[1:]])[first_step(steps, strength) :]
        table = self.alphas_cumprod()
        alpha, sigma = np.sqrt(table[times]), np.sqrt(1 - table[times])
        return Plan(
            timesteps=times.astype(np.float32),
            input_scale=np.ones(len(times), np.float32),
            values={
                **of_mixed(self.prediction_type, alpha, sigma),
                **_weights(len(times)),
                **self._transfer(times, self.num_train_timesteps // steps, table),
            },
            draws=np.zeros(len(times), bool),
            init_noise_sigma=1.0,
            clean_scale=np.append(alpha, np.float32(1)),
            noise_scale=np.append(sigma, np.float32(0)),
        )

    def _transfer(self, times: NDArray[np.int64], stride: int, table: Any) -> dict[str, Any]:
        """Return the factors of eq. 9 (PNDM's transfer), each step a fixed stride down."""
        repeated = stride * (np.arange(len(times)) == _REPEAT)
        if (times + repeated).max() >= len(table):
            raise OptionError("steps_offset", "leads beyond the last training timestep")
        now, previous = table[times + repeated], times + repeated - stride
        if not now.all():
            raise OptionError(
                "rescale_betas_zero_snr",
                "pndm cannot begin without a signal; choose another scheduler, or set it to false",
            )
        final = np.float32(1) if self.set_alpha_to_one else table[0]
        after = np.where(previous >= 0, table[np.maximum(previous, 0)], final)
        divisor = now * np.sqrt(1 - after) + np.sqrt(now * (1 - now) * after)
        is_v = self.prediction_type == "v_prediction"
        return {
            "latents": np.sqrt(after / now),
            "transfer": (after - now) / divisor,
            "noise_out": np.sqrt(now) if is_v else np.ones_like(now),
            "noise_skip": np.sqrt(1 - now) if is_v else np.zeros_like(now),
        }


def _weights(evaluations: int) -> dict[str, Column]:
    """Return PLMS's weights of the last outputs, and the index of the repeated evaluation."""
    rows = np.array([_WEIGHTS[min(i, len(_WEIGHTS) - 1)] for i in range(evaluations)], np.float32)
    repeats = (np.arange(evaluations) == _REPEAT).astype(np.float32)
    return {f"weight_{i}": rows[:, i] for i in range(_OUTPUTS)} | {"repeats": repeats}
