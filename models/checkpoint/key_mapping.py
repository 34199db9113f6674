"""Rename tables: a checkpoint's keys → the paths of a module's parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Prepare = Callable[[np.ndarray], np.ndarray]

Renames = Sequence[tuple[str, str] | tuple[str, str, Prepare]]
"""Rules (expression, path) or (expression, path, function); the first to match a whole key wins.

The path is dotted, with numbers for places in lists, and may use the expression's groups. `[\\1]`
at its end is the place on the leading axis of a stacked leaf. An empty path passes the key over.
`{q,k,v}` in it names several leaves: slices of the tensor along its first axis, in that order, each
as long as its leaf. `.T` behind the leaf's name: the file keeps this matrix as (in, out).
The function takes the tensor as stored and returns one of the same shape. Two rules for one path
are tied keys: where both are there, the first rule's serves.
"""


def layer_renames(
    layers: Mapping[str, str],
    norms: Mapping[str, str] | None = None,
    stack: tuple[str, str] | None = None,
) -> Renames:
    """Return the rules of a network's layers.

    Args:
        layers: expressions of linear layers' names → their paths. Each has rules of a kernel and a
            bias: where there is none, the bias's finds no leaf.
        norms: the same of norms that have a scale alone.
        stack: expression of equal blocks' name, whose number follows, and path of their stack;
            names and paths are then within a block. None: they are of the network itself.
    """
    before, within, place = "", "", ""
    if stack is not None:
        before, within, place = rf"{stack[0]}\.(\d+)\.", f"{stack[1]}.", r"[\1]"
    kinds = (
        (layers, "weight", "kernel"),
        (layers, "bias", "bias"),
        (norms or {}, "weight", "scale"),
    )
    return tuple(
        (rf"{before}{theirs}\.{array}", f"{within}{ours}.{leaf}{place}")
        for names, array, leaf in kinds
        for theirs, ours in names.items()
    )


class Target(NamedTuple):
    """Destination of one tensor."""

    path: str
    """Path of the leaf; empty: the tensor is not used."""
    layer: int | None
    """Place on the leaf's leading axis; None: the whole leaf."""
    rule: int
    """Number of the rule that says so."""
    transposed: bool = False
    """Whether it is transposed against torch's layout."""


def target(key: str, renames: Renames) -> Target | None:
    """Return where the table sends a checkpoint's key; None if no rule knows it."""
    for number, (expression, replacement, *_) in enumerate(renames):
        if match := re.fullmatch(expression, key):
            path, _, layer = match.expand(replacement).partition("[")
            place = int(layer.rstrip("]")) if layer else None
            return Target(path.removesuffix(".T"), place, number, path.endswith(".T"))
    return None


def split(path: str) -> tuple[str, ...]:
    """`a.{q,k}.b` → `a.q.b` and `a.k.b`: the leaves that share one tensor."""
    before, _, rest = path.partition("{")
    names, _, after = rest.partition("}")
    return tuple(f"{before}{name}{after}" for name in names.split(",")) if rest else (path,)


def source(path: str, layer: int | None, renames: Renames) -> str | None:
    """A key that the table sends to this place, for messages; None where none can be spelled."""
    wanted = path if layer is None else f"{path}[{layer}]"
    for number, (expression, replacement, *_) in enumerate(renames):
        for one in split(replacement.replace(".T", "")):
            key = _invert(wanted, expression, one)
            goal = target(key, renames) if key is not None else None
            if goal and goal.rule == number and (path, layer) in _places(goal):
                return key
    return None


def _invert(wanted: str, expression: str, replacement: str) -> str | None:
    named = re.sub(r"\\\\(\d)", r"(?P<g\1>.+)", re.escape(replacement))
    match = re.fullmatch(named, wanted)
    if match is None:
        return None
    return _spell(expression, {name[1:]: text for name, text in match.groupdict().items()})


def _places(goal: Target) -> list[tuple[str, int | None]]:
    return [(path, goal.layer) for path in split(goal.path)]


def _spell(expression: str, groups: dict[str, str]) -> str:
    """The shortest plain key of an expression: options left out, first alternatives taken."""
    key = re.sub(r"\(\?:[^()]*\)\?", "", expression)
    key = re.sub(r"\(\?:([^()|]*)[^()]*\)", r"\1", key)
    for number, group in enumerate(re.findall(r"\([^()]*\)", key), start=1):
        key = key.replace(group, groups.get(str(number), ""), 1)
    return key.replace("\\", "")
