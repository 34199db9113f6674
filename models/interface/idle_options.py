"""Detection of scheduler options without effect, by planning without each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from models.interface.pipeline import RequestWarning
from models.sampling.base import Plan, Scheduler
from models.spec.request import RequestError

SchedulerPlan = tuple[Scheduler, Plan]


def idle_options(
    chosen: Mapping[str, Any] | None, planned: Callable[[Mapping[str, Any]], SchedulerPlan]
) -> tuple[RequestWarning, ...]:
    """Warn about options whose removal leaves every step unchanged.

    An option that repeats the scheduler's default counts as effective.

    Args:
        chosen: the request's `scheduler`: `name` and options; None: not set.
        planned: returns the scheduler for a choice, and its plan for this request.
    """
    message = "has no effect with the other options and the steps of this request"
    return tuple(
        RequestWarning(f"scheduler.{name}", message)
        for name in sorted((chosen or {}).keys() - {"name"})
        if _is_idle(name, chosen or {}, planned)
    )


def _is_idle(
    name: str, chosen: Mapping[str, Any], planned: Callable[[Mapping[str, Any]], SchedulerPlan]
) -> bool:
    scheduler, plan = planned(chosen)
    try:
        other, other_plan = planned({key: value for key, value in chosen.items() if key != name})
    except RequestError:  # the other options require this option
        return False
    return scheduler != other and scheduler.solver == other.solver and same(plan, other_plan)


def same(plan: Plan, other: Plan) -> bool:
    """Return whether two schedules are bitwise equal."""
    names = {field.name for field in fields(Plan)} - {"values"}
    columns = plan.values.keys() == other.values.keys() and all(
        np.array_equal(column, other.values[name]) for name, column in plan.values.items()
    )
    return columns and all(
        np.array_equal(getattr(plan, name), getattr(other, name)) for name in names
    )
