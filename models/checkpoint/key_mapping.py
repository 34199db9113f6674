"""Rename tables that map a checkpoint's keys to the paths of a module's parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Prepare = Callable[[np.ndarray], np.ndarray]

Renames = Sequence[tuple[str, str] | tuple[str, str, Prepare]]
"""Rules (expression, path) or (expression, path, function). The first rule that matches the entire
key applies.

The path is dotted, with numbers for list indices, and may use the expression's groups. `[\\1]` at
its end is the index on the leading axis of a stacked leaf. An empty path skips the key. `{q,k,v}`
in it names several leaves: slices of the tensor along its first axis, in that order, each as long
as its leaf. `.T` after the leaf's name: the file stores this matrix as (in, out). The function
takes the tensor as stored and returns one of the same shape. Two rules for one path are tied keys:
if both keys exist, the first rule applies."""


def layer_renames(
    layers: Mapping[str, str],
    norms: Mapping[str, str] | None = None,
    stack: tuple[str, str] | None = None,
) -> Renames:
    """Return the rules of a network's layers.

    Args:
        layers: expressions of linear layers' names → their paths. Each gets rules for a kernel and
            a bias; without a bias, that rule matches no leaf.
        norms: the same for norms that have only a scale.
        stack: expression of equal blocks' name, before their number, and path of their stack. Names
            and paths are then relative to a block. None: relative to the network.
    """
    before, within, index = "", "", ""
    if stack is not None:
        before, within, index = rf"{stack[0]}\.(\d+)\.", f"{stack[1]}.", r"[\1]"
    kinds = (
        (layers, "weight", "kernel"),
        (layers, "bias", "bias"),
        (norms or {}, "weight", "scale"),
    )
    return tuple(
        (rf"{before}{name}\.{array}", f"{within}{module}.{leaf}{index}")
        for names, array, leaf in kinds
        for name, module in names.items()
    )


class Target(NamedTuple):
    """Destination of a checkpoint's tensor in a network."""

    path: str
    """Path of the leaf; empty: the tensor is ignored."""
    layer: int | None
    """Index on the leaf's leading axis; None: the complete leaf."""
    rule: int
    """Number of the matching rule."""
    transposed: bool = False
    """Whether it is transposed relative to torch's layout."""


def target(key: str, renames: Renames) -> Target | None:
    """Return the destination of a checkpoint's key; None if no rule matches."""
    for number, (expression, replacement, *_) in enumerate(renames):
        if match := re.fullmatch(expression, key):
            path, _, layer = match.expand(replacement).partition("[")
            index = int(layer.rstrip("]")) if layer else None
            return Target(path.removesuffix(".T"), index, number, path.endswith(".T"))
    return None


def split(path: str) -> tuple[str, ...]:
    """Expand a path to the leaves that share a tensor: `a.{q,k}.b` → `a.q.b` and `a.k.b`."""
    before, _, rest = path.partition("{")
    names, _, after = rest.partition("}")
    return tuple(f"{before}{name}{after}" for name in names.split(",")) if rest else (path,)


def source(path: str, layer: int | None, renames: Renames) -> str | None:
    """Return a key that maps to this destination, for messages; None if none can be built."""
    destination = path if layer is None else f"{path}[{layer}]"
    for number, (expression, replacement, *_) in enumerate(renames):
        for template in split(replacement.replace(".T", "")):
            key = _invert(destination, expression, template)
            goal = target(key, renames) if key is not None else None
            if goal and goal.rule == number and (path, layer) in _places(goal):
                return key
    return None


def _invert(destination: str, expression: str, replacement: str) -> str | None:
    named = re.sub(r"\\\\(\d)", r"(?P<g\1>.+)", re.escape(replacement))
    match = re.fullmatch(named, destination)
    if match is None:
        return None
    return _spell(expression, {name[1:]: text for name, text in match.groupdict().items()})


def _places(goal: Target) -> list[tuple[str, int | None]]:
    return [(path, goal.layer) for path in split(goal.path)]


def _spell(expression: str, groups: dict[str, str]) -> str:
    """Return the shortest key of an expression: no options, first alternatives."""
    key = re.sub(r"\(\?:[^()]*\)\?", "", expression)
    key = re.sub(r"\(\?:([^()|]*)[^()]*\)", r"\1", key)
    for number, group in enumerate(re.findall(r"\([^()]*\)", key), start=1):
        key = key.replace(group, groups.get(str(number), ""), 1)
    return key.replace("\\", "")
