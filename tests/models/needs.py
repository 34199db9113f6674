"""Whether a spec's needs are true: a field that lacks one changes nothing that the device gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.interface.pipeline import Pipeline, Prepared

NO_IMAGES: Mapping[str, bytes] = {}


def without_effect(
    pipeline: Pipeline, fields: Mapping[str, Any], images: Mapping[str, bytes] = NO_IMAGES
) -> set[str]:
    """Which of the fields can be left out, all others being there."""
    base = {**pipeline.spec.defaults, "prompt": "a red circle", "seed": 1}
    whole = {**base, **fields}

    def without(name: str) -> dict[str, Any]:
        rest = {key: value for key, value in whole.items() if key != name}
        return rest | ({name: base[name]} if name in base else {})

    prepared = pipeline.prepare(whole, images)
    return {name for name in fields if same(prepared, pipeline.prepare(without(name), images))}


def same(one: Prepared, other: Prepared) -> bool:
    """Whether the device gets the same."""
    phases = [[step.phase for step in each.steps] for each in (one, other)]
    values = [{n: s.values for n, s in enumerate(each.steps)} for each in (one, other)]
    return (
        one.bucket == other.bucket
        and phases[0] == phases[1]
        and _equal(one.inputs, other.inputs)
        and all(_equal(values[0][n], values[1][n]) for n in values[0])
    )


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)
