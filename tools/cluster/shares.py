"""A pool's share of the work that waits, where nobody has written it down."""

from __future__ import annotations

from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import RequestError
from tools.cluster.values import Model, Values, ValuesError
from workers.plan.make import PlanRequest, searched, sketched
from workers.slice.topology import Topology

LEAST_S = 30.0
"""A share of pictures: machines come for half a minute of work."""
LEAST_REQUESTS, MOST_REQUESTS = 4, 28
"""A share of requests that take long, and of such as take next to nothing."""
STEP_S = 5


def share_s(model: Model) -> float:
    """Reckon the share of a model by `atelier plan`'s fastest layout, in seconds.

    Raises: ValuesError: it does not say what to plan, or does not fit.
    """
    if model.plan is None:
        raise ValuesError(f"{model.name}: say objective_s, or by `plan` what it is reckoned from")
    topology = Topology.parse(f"{model.chip}:{model.topology}")
    ask = PlanRequest(model.plan.model, topology, model.plan.request, dtype=model.dtype)
    try:
        ranked = searched(ask, sketched(ask)).latency
    except (ValueError, RequestError, CheckpointError) as error:
        raise ValuesError(f"{model.name}: plan: {error}") from error
    if not ranked:
        raise ValuesError(f"{model.name}: a request does not fit {model.chip}:{model.topology}")
    request_s = min(one.request_s for one in ranked)
    share = min(max(LEAST_S, LEAST_REQUESTS * request_s), MOST_REQUESTS * request_s)
    return max(STEP_S, STEP_S * round(share / STEP_S))


def filled(values: Values) -> Values:
    """Return values in which every model has a share. Raises: ValuesError."""
    told = values.model_dump(exclude_unset=True)
    for model, own in zip(values.models, told["models"], strict=True):
        own["objective_s"] = model.objective_s or share_s(model)
    return Values.model_validate(told)
