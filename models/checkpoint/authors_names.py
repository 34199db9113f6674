"""Mapping from the original authors' layer names, used in single files, to diffusers' names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from models.checkpoint.key_mapping import Renames, target

Fused = Mapping[str, tuple[str, ...]]
"""Authors' layer name → diffusers' names of the layers that it fuses; `{}` is a number."""


def authors_renames(fused: Fused, renames: Renames, swapped: Collection[str] = ()) -> Renames:
    """Return the rename table of checkpoints with the keys of the original authors' code.

    Args:
        renames: the table of diffusers' keys; a layer's number is its index in a stack.
        swapped: names of `fused` whose output halves are in reverse order.
    """
    return tuple(
        (expression, path, swap_halves) if name in swapped else (expression, path)
        for name, parts in fused.items()
        for expression, path in _rules(name, parts, renames)
    )


def swap_halves(array: np.ndarray) -> np.ndarray:
    """Swap the first and the second half of an array's first axis."""
    return np.concatenate(np.split(array, 2)[::-1])


def _rules(name: str, parts: tuple[str, ...], renames: Renames) -> Iterator[tuple[str, str]]:
    """Yield the rename rules of a layer's weight and bias."""
    pattern = re.escape(name).replace(r"\{\}", r"(\d+)")
    index = r"[\1]" if "{}" in name else ""
    for array in ("weight", "bias"):
        goals = [target(f"{part.format(0)}.{array}", renames) for part in parts]
        paths = [goal.path for goal in goals if goal is not None]
        if len(paths) == len(parts):
            yield rf"{pattern}\.{array}", joined(paths) + index


def joined(paths: list[str]) -> str:
    """Join the paths of leaves that share a tensor, such as `a.{q,k}.kernel`."""
    if len(paths) == 1:
        return paths[0]
    steps = [path.split(".") for path in paths]
    first = next(n for n, names in enumerate(zip(*steps, strict=False)) if len({*names}) > 1)
    middles = ",".join(".".join(names[first:-1]) for names in steps)
    return ".".join([*steps[0][:first], f"{{{middles}}}", steps[0][-1]])
