"""Schedulers that Wan runs under: those that know a flow, from the checkpoint or the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from models.interface.pipeline import RequestError
from models.sampling import registry
from models.sampling.base import Scheduler
from models.spec.option import Option

NAMES = ("unipc", "dpmpp_2m", "dpmpp_2m_sde", "flow_match_euler")
CLASSES = ("UniPCMultistepScheduler", "DPMSolverMultistepScheduler")
EULER = "FlowMatchEulerDiscreteScheduler"

OPTIONS: Mapping[str, Mapping[str, Option]] = {
    name: registry.OPTIONS[name] for name in (*NAMES, *CLASSES, EULER)
}
"""Options of the names that a request may use, for the spec."""

FLOW: Mapping[str, Any] = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
"""Fields that Euler's config takes for granted and others have to be given."""


@runtime_checkable
class FlowScheduler(Scheduler, Protocol):
    """A scheduler that says how far its timesteps count."""

    @property
    def num_train_timesteps(self) -> int:
        """Number of steps in training."""


def scheduler_of(config: Mapping[str, Any], chosen: Mapping[str, Any] | None) -> FlowScheduler:
    """The checkpoint's own scheduler, or what the request wishes in its place.

    Args:
        config: the checkpoint's `scheduler_config.json`.
        chosen: the scheduler of the request; None: none.

    Raises: RequestError, naming the option that is wrong.
    """
    if chosen is None:
        return registry.from_config(config)  # type: ignore[return-value]
    name = chosen.get("name")
    if name is not None and name not in OPTIONS:
        raise RequestError("scheduler", f"{name!r} is none of {sorted(OPTIONS)}, which know a flow")
    if config["_class_name"] == EULER:
        config = {**FLOW, **config}
    try:
        return registry.for_request(config, chosen)  # type: ignore[return-value]
    except ValueError as error:
        raise RequestError("scheduler", str(error)) from error
