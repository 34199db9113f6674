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
    union: int | None = None
    """Number of a union that reads all images of a request for it in one run, which is in every
    step and costs as much as one image's; `null`: each image has a run of its own."""


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
    served = [one for one in entries if one["name"] in known]
    work = sum(_work(run, known, until) for run in _runs(served, known))
    return math.ceil(PARTS * work) / PARTS


def is_read_with_others(
    entry: Mapping[str, Any],
    entries: Iterable[Mapping[str, Any]],
    known: Mapping[str, ControlKind],
) -> bool:
    """Return whether a union reads a request's entry in one run with others of its entries."""
    kinds = [known[one["name"]] for one in entries if one["name"] in known]
    kind = known.get(entry["name"])
    if kind is None or kind.union is None:
        return False
    return [one.union for one in kinds].count(kind.union) > 1


def _runs(
    entries: Iterable[Mapping[str, Any]], known: Mapping[str, ControlKind]
) -> Iterable[list[Mapping[str, Any]]]:
    """Return the entries by the runs of ControlNets that read them."""
    runs: dict[tuple[int | None, int], list[Mapping[str, Any]]] = {}
    for place, one in enumerate(entries):
        union = known[one["name"]].union
        runs.setdefault((union, place if union is None else 0), []).append(one)
    return runs.values()


def _work(run: list[Mapping[str, Any]], known: Mapping[str, ControlKind], until: float) -> float:
    """Return the work of a run, which is in every step if it reads several images."""
    first, *others = run
    if others:
        return known[first["name"]].work * until
    return known[first["name"]].work * _share(first, until) if first.get("scale", 1.0) else 0.0


def _share(entry: Mapping[str, Any], until: float) -> float:
    """Return the share of the steps that a control is in."""
    end = min(float(entry.get("end", 1.0)), until)
    return max(0.0, end - float(entry.get("start", 0.0)))
