"""Estimate of a program's peak memory in addition to its arguments, without compiling it.

Elementwise results are assumed to be fused into their readers, and logits to stay inside the
attention kernel. Every other value lives from the equation that produces it to its last reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from models.parallel import jax_internals
from workers.jaxpr.axis_tags import Tag
from workers.jaxpr.operations import (
    Pairs,
    chosen_branches,
    inner_jaxpr,
    is_by_platform,
    nbytes,
    pairs,
)

HEAVY = frozenset(
    {"dot_general", "conv_general_dilated", "scan", "while", "cond", "gather", "concatenate"}
    | {"dynamic_update_slice", "scatter", "shard_map", "sort"}
)
"""Primitives that read from memory and write to it."""

Live = Mapping[Pairs, float]
"""Bytes of all devices together, by the axes that split them."""


def peak(jaxpr: Any, tags: Mapping[Any, Tag]) -> Live:
    """Return the largest set of live values of a jaxpr; its arguments are not counted.

    Args:
        tags: of every value of the jaxpr and of its inner jaxprs.
    """
    written = _written(jaxpr)
    last = _last_reads(jaxpr, written)
    alive: dict[Any, Tag] = {}
    fullest: Live = {}
    for at, equation in enumerate(jaxpr.eqns):
        inside = _bodies(equation)
        for body in inside:
            fullest = _fuller(fullest, _sum(alive, peak(body, tags)))
        for var in equation.outvars:
            tag = tags.get(var, Tag())
            if var in written and last.get(var, -1) > at and not (tag.logits or tag.is_weight):
                alive[var] = tag
        fullest = _fuller(fullest, _sum(alive, {}))
        alive = {var: tag for var, tag in alive.items() if last[var] > at}
    return fullest


def _last_reads(jaxpr: Any, written: set[Any]) -> dict[Any, int]:
    """Return the index of the last equation that reads each value; results live to the end."""
    last = {var: len(jaxpr.eqns) for var in _variables(jaxpr.outvars)}
    for at in reversed(range(len(jaxpr.eqns))):
        equation = jaxpr.eqns[at]
        # A fused value is read when its readers run.
        until = max((last.get(v, at) for v in equation.outvars if v not in written), default=at)
        for var in _variables(equation.invars):
            last[var] = max(last.get(var, -1), until)
    return last


def _written(jaxpr: Any) -> set[Any]:
    """Return a jaxpr's values that are in memory: results and operands of unfusable equations."""
    written = set(_variables(jaxpr.outvars))
    for equation in jaxpr.eqns:
        if _is_heavy(equation):
            written |= set(equation.outvars)
            written |= set(_variables(equation.invars))
    return written


def _is_heavy(equation: Any) -> bool:
    if is_by_platform(equation):
        return bool(_bodies(equation))
    return equation.primitive.name in HEAVY or bool(_bodies(equation))


def _bodies(equation: Any) -> list[Any]:
    """Return the jaxprs inside an equation; none for a platform branch that can be fused."""
    if equation.primitive.name == "cond":
        branches = [branch.jaxpr for branch in chosen_branches(equation)]
        fused = is_by_platform(equation) and not any(map(_is_heavy, branches[0].eqns))
        return [] if fused else branches
    if equation.primitive.name == "while":
        return [equation.params["body_jaxpr"].jaxpr]
    inner = inner_jaxpr(equation)
    return [] if inner is None else [inner]


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, jax_internals.Literal)]


def _sum(alive: Mapping[Any, Tag], more: Live) -> Live:
    total: defaultdict[Pairs, float] = defaultdict(float)
    for var, tag in alive.items():
        total[pairs(tag.sizes)] += nbytes(var.aval)
    for axes, size in more.items():
        total[axes] += size
    return total


def _fuller(a: Live, b: Live) -> Live:
    return a if sum(a.values()) >= sum(b.values()) else b
