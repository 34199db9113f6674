"""Default `objective_s` of a model, computed with the planner."""

from __future__ import annotations

from models.checkpoint.folder import CheckpointError
from models.spec.request import RequestError
from tools.cluster.values import Model, Values, ValuesError
from workers.plan.make import PlanRequest, search_layouts, sketched
from workers.slice.topology import Topology

MIN_S = 30.0
"""Minimum objective: machines are added for half a minute of waiting work."""
MIN_REQUESTS, MAX_REQUESTS = 4, 28
"""Objective in requests: the minimum for slow requests, and the maximum for fast ones."""
STEP_S = 5


def share_s(model: Model) -> float:
    """Return the objective of a model in seconds, from the fastest layout of `atelier plan`.

    Raises: ValuesError: `plan` is missing, or does not fit.
    """
    if model.plan is None:
        raise ValuesError(f"{model.name}: set objective_s, or `plan` to estimate it from")
    topology = Topology.parse(f"{model.chip}:{model.topology}")
    plan_request = PlanRequest(model.plan.model, topology, model.plan.request, dtype=model.dtype)
    try:
        ranked = search_layouts(plan_request, sketched(plan_request)).latency
    except (ValueError, RequestError, CheckpointError) as error:
        raise ValuesError(f"{model.name}: plan: {error}") from error
    if not ranked:
        raise ValuesError(f"{model.name}: a request does not fit {model.chip}:{model.topology}")
    request_s = min(estimate.request_s for estimate in ranked)
    share = min(max(MIN_S, MIN_REQUESTS * request_s), MAX_REQUESTS * request_s)
    return max(STEP_S, STEP_S * round(share / STEP_S))


def filled(values: Values) -> Values:
    """Return values in which every model has an objective. Raises: ValuesError."""
    dumped = values.model_dump(exclude_unset=True)
    for model, entry in zip(values.models, dumped["models"], strict=True):
        entry["objective_s"] = model.objective_s or share_s(model)
    return Values.model_validate(dumped)
