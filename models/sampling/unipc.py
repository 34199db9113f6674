"""UniPC: each step first corrects the step before it with the network's output at its end.

Source: Zhao et al. 2023 (UniPC), algorithms 1 (corrector) and 2 (predictor), in the B(h) form;
diffusers scheduling_unipc_multistep.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.sampling.base import Column, Numbers, Plan, per_row
from models.sampling.multistep import MultistepSchedule, MultistepStep, columns, half_log_snr
from models.sampling.sigmas import chosen_spacing, to_timesteps
from models.sampling.solver import History, Latents, Solver, SolverOutput
from models.sampling.timesteps import check_request, first_step, spaced_between
from models.sampling.unipc_terms import corrector_terms, predictor_terms
from models.spec.option import OptionError

_BELOW_ONE = 1e-6
"""Subtracted from a flow's first sigma: at 1 the half-log-SNR is infinite."""


@dataclass(frozen=True)
class UniPCStep(MultistepStep):
    """Solver of UniPC: a corrector and a predictor."""

    METHOD: ClassVar[str] = "unipc"

    def begin(self, latents: Float[Array, "*shape"]) -> History:
        """Return the initial history that UniPC's corrector reads, all zeros.

        It has the corrected latents at the start of the last step, and the integrands of earlier
        steps, the newest as `previous_1`.
        """
        names = ("corrected", *(f"previous_{i}" for i in range(1, self.order + 1)))
        return {name: jnp.zeros_like(latents) for name in names}

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Apply one UniPC step: correct the latents, then predict the next ones from them."""
        denoised, current = self.integrand(latents, output, values)
        term = {name: per_row(value, latents) for name, value in values.items()}
        before = [history[f"previous_{i}"] for i in range(1, self.order + 1)]
        corrected = (
            term["keep"] * latents
            + term["correct_latents"] * history["corrected"]
            + term["correct_last"] * before[0]
            + term["correct_new"] * (current - before[0])
        )
        recent = [current, *before]
        for i in range(1, self.order):
            corrected = corrected + term[f"correct_{i}"] * (before[i] - before[0])
        following = term["latents"] * corrected + term["current"] * current
        for i in range(1, self.order):
            following = following + term[f"predict_{i}"] * (recent[i] - current)
        recent_now = {f"previous_{i}": recent[i - 1] for i in range(1, self.order + 1)}
        return SolverOutput(following, denoised, {"corrected": corrected, **recent_now})


@dataclass(frozen=True, kw_only=True)
class UniPC(MultistepSchedule):
    """Equivalent of diffusers' UniPCMultistepScheduler."""

    solver_type: str = "bh2"
    """B(h) = h (bh1) or exp(h) - 1 (bh2)."""
    predict_x0: bool = True
    """Whether the integral is over the denoised latents, not over the noise."""
    disable_corrector: tuple[int, ...] = ()
    """Steps of the whole schedule that the following step does not correct."""
    solver_p: object = None
    use_dynamic_shifting: bool = False
    time_shift_type: str = "exponential"
    shift_terminal: float | None = None
    """Last sigma, to which a flow's schedule is stretched; None: not stretched."""

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **MultistepSchedule.CHOICES,
        "solver_type": ("bh1", "bh2"),
    }
    READ_AS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "solver_type": {"midpoint": "bh2", "heun": "bh2", "logrho": "bh2"}
    }
    """Other schedulers' config values, and the reference's replacements."""
    ACCEPTED_LISTS: ClassVar[frozenset[str]] = frozenset({"sigmas"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver_p is not None:
            raise OptionError("solver_p", "another scheduler as predictor is not served")
        if self.use_dynamic_shifting:
            raise OptionError("use_dynamic_shifting", "the pipelines give UniPC no mu to shift by")
        if self.shift_terminal is not None and not self.use_flow_sigmas:
            raise OptionError("shift_terminal", "needs use_flow_sigmas")

    @property
    def name(self) -> str:
        """Name of the scheduler in requests."""
        return "unipc"

    @property
    def solves_for_noise(self) -> bool:
        """True if the integral is over the predicted noise (no predict_x0)."""
        return not self.predict_x0

    @property
    def thresholds(self) -> bool:
        """True if denoised latents are thresholded, which needs predict_x0, as in the reference."""
        return self.thresholding and self.predict_x0

    @property
    def solver(self) -> Solver:
        """Solver by order, integrand and thresholding; all other options are in the values."""
        return UniPCStep(*self.step_options)

    def plan(
        self,
        steps: int,
        *,
        timesteps: Numbers | None = None,
        sigmas: Numbers | None = None,
        strength: float | None = None,
    ) -> Plan:
        """Compute the step table, as `Scheduler.plan`.

        Custom sigmas, one per step, are a flow's, and are shifted.
        """
        check_request(steps, timesteps=timesteps, sigmas=sigmas, accepted=self.ACCEPTED_LISTS)
        if sigmas is not None and not self.use_flow_sigmas:
            raise OptionError(
                "sigmas", "need use_flow_sigmas: otherwise UniPC does not accept custom sigmas"
            )
        times, table = self._schedule(steps, sigmas)
        first = first_step(steps if sigmas is None else len(times), strength)
        alpha, sigma = self.mixed(table)
        places = (alpha, sigma, half_log_snr(alpha, sigma))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rows = [self._terms(places, i, first) for i in range(first, len(times))]
        return self.multistep_plan(times, table, first, columns(rows))

    def _order(self, step: int, first: int, steps: int) -> int:
        """Return a step's order: lower at the start (no history) and optionally at the end."""
        left = steps - step if self.lower_order_final else self.solver_order
        return min(self.solver_order, left, step - first + 1)

    def _terms(self, places: Any, step: int, first: int) -> dict[str, Any]:
        """Return the factors of one UniPC step, for the corrector and the predictor."""
        steps = len(places[0]) - 1
        names = [f"{of}_{i}" for of in ("correct", "predict") for i in range(1, self.solver_order)]
        none = {"keep": 1.0, "correct_latents": 0.0, "correct_last": 0.0, "correct_new": 0.0}
        terms: dict[str, Any] = none | dict.fromkeys(names, 0.0)
        if step > first and step - 1 not in self.disable_corrector:
            order = self._order(step - 1, first, steps)
            nearby = self._columns_before(places, step, order)
            terms |= corrector_terms(*nearby, self.solves_for_noise, self.solver_type)
        nearby = self._columns_before(places, step + 1, self._order(step, first, steps))
        return terms | predictor_terms(*nearby, self.solves_for_noise, self.solver_type)

    @staticmethod
    def _columns_before(places: Any, target: int, order: int) -> tuple[Column, Column, Column]:
        """Return alpha, sigma and lambda at the target and at the `order` points before it."""
        return tuple(column[[target - i for i in range(order + 1)]] for column in places)

    def _schedule(self, steps: int, custom: Numbers | None) -> tuple[Any, Column]:
        """Return UniPC's schedule: integer timesteps [n] and sigmas [n + 1]."""
        train = self.train_sigmas()
        if chosen_spacing(self):
            table = train if custom is None else np.asarray(custom)
            sigmas, times = self._respaced(table, steps if custom is None else len(custom))
        elif self.use_flow_sigmas:
            sigmas = self._flow(steps, custom)
            times = sigmas * self.num_train_timesteps
        else:
            times = spaced_between(
                self.timestep_spacing, self.num_train_timesteps, steps, self.steps_offset
            )
            sigmas = np.interp(times, np.arange(len(train)), train)
        from_table = not (chosen_spacing(self) or self.use_flow_sigmas)
        lowest = train[0] if from_table else sigmas[-1]
        final = lowest if self.final_sigmas_type == "sigma_min" else 0
        return times.astype(np.int64), np.append(sigmas, final).astype(np.float32)

    def _respaced(self, table: Any, steps: int) -> tuple[Any, Any]:
        """Return respaced sigmas and timesteps; Karras' are rounded, the others truncated."""
        sigmas = self.respaced(table, steps)
        if self.use_karras_sigmas and self.use_flow_sigmas:
            sigmas = sigmas / (sigmas + 1)
            return sigmas, sigmas * self.num_train_timesteps
        times = to_timesteps(sigmas, np.log(table))
        return sigmas, times.round() if self.use_karras_sigmas else times

    def _flow(self, steps: int, custom: Numbers | None) -> Any:
        """Return a flow's sigmas, decreasing from just below 1, shifted towards noise."""
        if custom is None:
            even = np.linspace(1, 1 / self.num_train_timesteps, steps + 1)[:-1]
        else:
            even = np.asarray(custom, np.float64)
        sigmas = self.flow_shift * even / (1 + (self.flow_shift - 1) * even)
        if self.shift_terminal:
            rest = 1 - sigmas
            sigmas = 1 - rest / (rest[-1] / (1 - self.shift_terminal))
        if abs(sigmas[0] - 1) < _BELOW_ONE:
            sigmas[0] -= _BELOW_ONE
        return np.minimum(sigmas, sigmas[0])
