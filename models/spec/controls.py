"""Controls (ControlNet) in requests and model specs, with their cost. No JAX.

A control is an image, such as edges, depth or a pose, that the output follows. Operators name a
model's ControlNets. Each control of a request names a ControlNet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FIELD = "control"
"""Request field of controls."""


class ControlKind(BaseModel):
    """Kind of control that one of a model's ControlNets supports."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    mode: str | None = None
    """Kind of control image for a union ControlNet, which supports several; `null`: the ControlNet
    supports one."""
    work: float = Field(default=0.0, ge=0)
    """Work that a control image adds to a step, as a share of a step without controls."""
    union: int | None = None
    """Number of a union ControlNet that reads all of its images in a request in one run. The run is
    part of every step and costs as much as for one image. `null`: each image has its own run."""


class ControlOptions(BaseModel):
    """Options of a request's control, except its image."""

    model_config = ConfigDict(frozen=True)

    name: str = ""
    """Name of a ControlNet."""
    scale: float = 1.0
    start: float = 0.0
    """Start of its effect, as a share of the steps."""
    end: float = 1.0
    """End of its effect, as a share of the steps."""
    preprocess: str | None = None


PARTS = 8
"""Price resolution in parts of a step: requests of similar price share a bucket."""


def work_of(
    entries: Iterable[Mapping[str, Any]], kinds: Mapping[str, ControlKind], until: float = 1.0
) -> float:
    """Return the mean work that controls add to a request's steps, rounded up to 1/8 step.

    Args:
        entries: controls of the request; unknown names are ignored.
        until: share of the steps in which controls may run.
    """
    served = [entry for entry in entries if entry["name"] in kinds]
    work = sum(_work(run, kinds, until) for run in _runs(served, kinds))
    return math.ceil(PARTS * work) / PARTS


def is_read_with_others(
    entry: Mapping[str, Any],
    entries: Iterable[Mapping[str, Any]],
    kinds: Mapping[str, ControlKind],
) -> bool:
    """Return whether a union ControlNet reads this control in one run with other controls."""
    named = [kinds[other["name"]] for other in entries if other["name"] in kinds]
    kind = kinds.get(entry["name"])
    if kind is None or kind.union is None:
        return False
    return [other.union for other in named].count(kind.union) > 1


def _runs(
    entries: Iterable[Mapping[str, Any]], kinds: Mapping[str, ControlKind]
) -> Iterable[list[Mapping[str, Any]]]:
    """Group a request's controls by the ControlNet run that reads them."""
    runs: dict[tuple[int | None, int], list[Mapping[str, Any]]] = {}
    for index, entry in enumerate(entries):
        union = kinds[entry["name"]].union
        runs.setdefault((union, index if union is None else 0), []).append(entry)
    return runs.values()


def _work(run: list[Mapping[str, Any]], kinds: Mapping[str, ControlKind], until: float) -> float:
    """Return the mean cost of a ControlNet run; one that reads several images is in every step."""
    first, *others = run
    if others:
        return kinds[first["name"]].work * until
    return kinds[first["name"]].work * _share(first, until) if first.get("scale", 1.0) else 0.0


def _share(entry: Mapping[str, Any], until: float) -> float:
    """Return the share of the steps in which a control is active."""
    end = min(float(entry.get("end", 1.0)), until)
    return max(0.0, end - float(entry.get("start", 0.0)))
