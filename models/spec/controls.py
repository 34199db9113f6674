"""Controls as front ends and workers know them. No JAX in here: the front end imports it.

A control is an image that says what is where, read by a ControlNet. Operators name a model's
ControlNets; a request names one beside each image.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FIELD = "control"
"""Request field that holds them."""


class ControlKind(BaseModel):
    """Reading of control images by one of a model's ControlNets."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    mode: str | None = None
    """Kind of control images of a union, which reads several; `null`: its ControlNet reads one."""
    work: float = Field(default=0.0, ge=0)
    """Work that one such image adds to a step, as a share of the step's without any."""


PARTS = 8
"""Parts of a step in which controls are priced: requests of about one price share a bucket."""


def work_of(
    entries: Iterable[Mapping[str, Any]], known: Mapping[str, ControlKind], until: float = 1.0
) -> float:
    """Return the work that controls add to a request's steps, in the mean, to an eighth of a step.

    Args:
        entries: of the request; unknown names are left out.
        until: share of the steps in which any control is read.
    """
    work = sum(
        known[one["name"]].work * _share(one, until)
        for one in entries
        if one["name"] in known and one.get("scale", 1.0)
    )
    return math.ceil(PARTS * work) / PARTS


def _share(entry: Mapping[str, Any], until: float) -> float:
    """Return the share of the steps that a control is in."""
    end = min(float(entry.get("end", 1.0)), until)
    return max(0.0, end - float(entry.get("start", 0.0)))
