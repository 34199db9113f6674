"""Options of a request's scheduler that change nothing: found by leaving each of them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from models.interface.pipeline import RequestError, RequestWarning
from models.sampling.base import Plan, Scheduler

Planned = tuple[Scheduler, Plan]


def idle_options(
    chosen: Mapping[str, Any] | None, planned: Callable[[Mapping[str, Any]], Planned]
) -> tuple[RequestWarning, ...]:
    """Warn of options without which every step would be the same.

    An option that repeats what the scheduler does anyway has its effect.

    Args:
        chosen: the request's `scheduler`: `name` and options; None: none.
        planned: the scheduler of such a choice, and its plan of this request.
    """
    said = "has no effect beside the other options and the steps of this request"
    return tuple(
        RequestWarning(f"scheduler.{name}", said)
        for name in sorted((chosen or {}).keys() - {"name"})
        if _is_idle(name, chosen or {}, planned)
    )


def _is_idle(
    name: str, chosen: Mapping[str, Any], planned: Callable[[Mapping[str, Any]], Planned]
) -> bool:
    scheduler, plan = planned(chosen)
    try:
        other, other_plan = planned({key: value for key, value in chosen.items() if key != name})
    except RequestError:  # the other options need it
        return False
    return scheduler != other and scheduler.solver == other.solver and same(plan, other_plan)


def same(plan: Plan, other: Plan) -> bool:
    """Return whether two plans are of the same steps, to the bit."""
    names = {field.name for field in fields(Plan)} - {"values"}
    columns = plan.values.keys() == other.values.keys() and all(
        np.array_equal(column, other.values[name]) for name, column in plan.values.items()
    )
    return columns and all(
        np.array_equal(getattr(plan, name), getattr(other, name)) for name in names
    )
