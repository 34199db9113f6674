"""Other methods over the sigmas of a flow-matching checkpoint: Heun, and DPM-Solver++ (2M).

The schedule is the checkpoint's: its shift, by tokens or static, and a request's own sigmas.
diffusers' pipelines of these models only accept Euler; its classes of both methods have the same
steps, as ComfyUI runs them on these models.

Source: Karras et al. 2022 (EDM), algorithm 1; Lu et al. 2022, DPM-Solver++ (algorithm 2); diffusers
scheduling_flow_match_heun_discrete.py and scheduling_dpmsolver_multistep.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from models.sampling.base import Column, Plan
from models.sampling.dpm import DPMStep
from models.sampling.dpm_terms import multistep_terms
from models.sampling.flow_heun import flow_heun_plan
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.multistep import columns, half_log_snr
from models.sampling.prediction import of_noisy
from models.sampling.registry import served_config
from models.sampling.solver import Solver
from models.sampling.two_stage import TWO_A_STEP, TwoStageStep
from models.spec.evaluations import ONE_A_STEP, Evaluations
from models.spec.option import Option, OptionError
from models.spec.scheduler_names import resolve_scheduler


@dataclass(frozen=True)
class ShiftedHeun(FlowMatchEuler):
    """Heun's method over a checkpoint's sigmas."""

    name: ClassVar[str] = "flow_match_heun"
    solver: ClassVar[Solver] = TwoStageStep()
    EVALUATIONS: ClassVar[Evaluations] = TWO_A_STEP

    def solver_plan(self, table: Column, times: Column, first: int) -> Plan:
        """Build the plan of Heun's two stages from step `first` on."""
        return flow_heun_plan(table, self.num_train_timesteps, first)


@dataclass(frozen=True)
class ShiftedDPM(FlowMatchEuler):
    """DPM-Solver++ (2M) over a checkpoint's sigmas; the first and the last step have order 1."""

    name: ClassVar[str] = "dpmpp_2m"
    solver: ClassVar[Solver] = DPMStep()

    def solver_plan(self, table: Column, times: Column, first: int) -> Plan:
        """Build the plan of DPM-Solver++ (2M) from step `first` on."""
        count = len(times)
        orders = [1 if i in (first, count - 1) else 2 for i in range(first, count)]
        rows = [_terms(table, i, order) for i, order in enumerate(orders, first)]
        now = table[first:-1]
        values = {**of_noisy("epsilon", now), **columns(rows)}
        return self.flow_plan(times[first:], now, values)


def _terms(sigmas: Column, step: int, order: int) -> dict[str, Any]:
    """Return the factors of one DPM-Solver++ step over a flow, as `DPMStep` reads them.

    At sigma 1 the half-log-SNR is infinite, which leaves finite factors.
    """
    sigma = sigmas[[step + 1, *(step - i for i in range(order))]]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        clock = half_log_snr(1 - sigma, sigma)
        terms = multistep_terms("dpmsolver++", "midpoint", 1 - sigma, sigma, clock)
    return {"noise": 0.0, "difference_1": 0.0, **terms}


_CHOICES: Mapping[str, type[FlowMatchEuler]] = {
    "flow_match_euler": FlowMatchEuler,
    "flow_match_heun": ShiftedHeun,
    "dpmpp_2m": ShiftedDPM,
    "FlowMatchEulerDiscreteScheduler": FlowMatchEuler,
    "FlowMatchHeunDiscreteScheduler": ShiftedHeun,
    "DPMSolverMultistepScheduler": ShiftedDPM,
}
EULER = "FlowMatchEulerDiscreteScheduler"
_CHECKPOINTS: Mapping[str, type[FlowMatchEuler]] = {
    EULER: FlowMatchEuler,
    "FlowMatchHeunDiscreteScheduler": ShiftedHeun,
}
"""Schedulers of checkpoints; a config of DPM-Solver++ defines other sigmas."""
FLOW_SCHEDULERS: Mapping[str, Mapping[str, Option]] = {name: {} for name in _CHOICES}
"""Schedulers of flow-matching image models, for their specs; none has options."""
FLOW_EVALUATIONS: Mapping[str, Evaluations] = {
    name: evaluations
    for name, kind in _CHOICES.items()
    if (evaluations := getattr(kind, "EVALUATIONS", ONE_A_STEP)) != ONE_A_STEP
}
"""Evaluations of the network by scheduler name, for the specs."""


def checkpoint_scheduler(
    config: Mapping[str, Any], chosen: str | None, names: Collection[str] = FLOW_SCHEDULERS
) -> FlowMatchEuler:
    """Return the scheduler of a checkpoint's config; without a class, Euler's.

    Args:
        chosen: default scheduler of its requests, which replaces one that is not served.
        names: schedulers that its requests may name.

    Raises: ValueError: an unsupported class or value.
    """
    classes = [name for name in _CHECKPOINTS if name in names] or [EULER]
    choices = {name: FLOW_SCHEDULERS[name] for name in names}
    config = served_config({"_class_name": EULER, **config}, classes, choices, chosen, EULER)
    return _CHECKPOINTS[config["_class_name"]].from_dict(config)


def flow_scheduler(default: FlowMatchEuler, chosen: Mapping[str, Any] | None) -> FlowMatchEuler:
    """Return the scheduler of a request, over the checkpoint's sigmas.

    Args:
        default: the checkpoint's scheduler.
        chosen: the request's `scheduler`, of which only the name matters; None: the checkpoint's.

    Raises: OptionError: an unknown name, or an option.
    """
    if chosen is None:
        return default
    options = resolve_scheduler(chosen, FLOW_SCHEDULERS)
    name = options.pop("name", default.name)
    if name not in _CHOICES:
        raise OptionError("name", f"{name!r} must be one of {sorted(_CHOICES)}")
    if options:
        raise OptionError(min(options), f"is not an option of {name}, which has none")
    return _CHOICES[name](**{entry.name: getattr(default, entry.name) for entry in fields(default)})
