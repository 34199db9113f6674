"""Flow-matching schedulers that Wan supports, selected by the checkpoint or the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from models.sampling import registry
from models.sampling.base import Scheduler
from models.spec.evaluations import Evaluations
from models.spec.option import Option, OptionError
from models.spec.request import RequestError
from models.spec.scheduler_names import resolve_scheduler

NAMES = ("unipc", "dpmpp_2m", "dpmpp_2m_sde", "flow_match_euler", "flow_match_heun")
CLASSES = ("UniPCMultistepScheduler", "DPMSolverMultistepScheduler")
FLOW_CLASSES = ("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")

OPTIONS: Mapping[str, Mapping[str, Option]] = {
    name: registry.OPTIONS[name] for name in (*NAMES, *CLASSES, *FLOW_CLASSES)
}
"""Options of each scheduler name that a request may use, for the spec."""
EVALUATIONS: Mapping[str, Evaluations] = {
    name: of for name, of in registry.EVALUATIONS.items() if name in OPTIONS
}
"""Evaluations of the network by scheduler name, for the spec."""

FLOW: Mapping[str, Any] = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
"""Fields that are implicit in the configs of flow schedulers; others need them explicitly."""


@runtime_checkable
class FlowScheduler(Scheduler, Protocol):
    """Scheduler protocol with the number of training timesteps, which bounds Wan's experts."""

    @property
    def num_train_timesteps(self) -> int:
        """Number of timesteps in the model's training."""


def checkpoint_config(config: Mapping[str, Any], chosen: str | None) -> dict[str, Any]:
    """Return a checkpoint's scheduler config, with a supported scheduler.

    Args:
        chosen: default scheduler of requests, which replaces one that is not served.

    Raises: ValueError: a scheduler of another kind of network, or an unsupported value.
    """
    classes = (*CLASSES, *FLOW_CLASSES)
    served = registry.served_config(config, classes, OPTIONS, chosen, FLOW_CLASSES[0])
    if config.get("_class_name") not in classes:
        served = {**FLOW, **served}
    if getattr(registry.from_config(served), "use_dynamic_shifting", False):
        raise ValueError("use_dynamic_shifting: this pipeline has no tokens to shift by")
    return served


def scheduler_of(config: Mapping[str, Any], chosen: Mapping[str, Any] | None) -> FlowScheduler:
    """Return the request's scheduler, or the checkpoint's by default.

    Args:
        config: the checkpoint's `scheduler_config.json`.
        chosen: the request's scheduler; None if not given.

    Raises: RequestError: an invalid option; names the option.
    """
    if chosen is None:
        return registry.from_config(config)  # type: ignore[return-value]
    if config["_class_name"] in FLOW_CLASSES:
        config = {**FLOW, **config}
    try:
        chosen = resolve_scheduler(chosen, OPTIONS)
        name = chosen.get("name")
        if name is not None and name not in OPTIONS:
            raise RequestError("scheduler", f"{name!r} must be one of {sorted(OPTIONS)}")
        return registry.for_request(config, chosen)  # type: ignore[return-value]
    except OptionError as error:
        raise RequestError.of_scheduler(error) from error
