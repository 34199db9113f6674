"""Check of a spec's `needs`: a field whose need is unmet changes none of the device's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.interface.pipeline import Pipeline, PreparedRow

NO_IMAGES: Mapping[str, bytes] = {}


def without_effect(
    pipeline: Pipeline, fields: Mapping[str, Any], images: Mapping[str, bytes] = NO_IMAGES
) -> set[str]:
    """Return the fields that can be omitted without effect while all others are present."""
    base = {**pipeline.spec.defaults, "prompt": "a red circle", "seed": 1}
    complete = {**base, **fields}

    def without(name: str) -> dict[str, Any]:
        remaining = {key: value for key, value in complete.items() if key != name}
        return remaining | ({name: base[name]} if name in base else {})

    prepared = pipeline.prepare(complete, images)
    return {name for name in fields if same(prepared, pipeline.prepare(without(name), images))}


def same(first: PreparedRow, second: PreparedRow) -> bool:
    """Return whether the device receives equal inputs and steps for both requests."""
    programs = [[step.program for step in prepared.steps] for prepared in (first, second)]
    values = [{n: s.values for n, s in enumerate(prepared.steps)} for prepared in (first, second)]
    return (
        first.bucket == second.bucket
        and programs[0] == programs[1]
        and _equal(first.inputs, second.inputs)
        and all(_equal(values[0][n], values[1][n]) for n in values[0])
    )


def _equal(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[n], second[n]) for n in first)
