"""Operations of a traced program: matrix products and convolutions, with their split axes.

A loop's body counts once per iteration. Nothing is compiled; the jaxpr's equations are walked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from models.parallel import jax_internals
from workers.jaxpr.axis_tags import Sizes, Tag, activation, constrained, in_use, reshaped, union
from workers.jaxpr.logical_mesh import axes_of

Kind = Literal["matmul", "attention", "conv"]
Pairs = tuple[tuple[str, int], ...]
"""`Sizes` as a hashable key."""


INSIDE = ("heads", "mlp")
"""Axes between a layer's first and last product."""


@dataclass(frozen=True)
class Op:
    """Matrix product or convolution in a traced program, with FLOPs and bytes of all devices."""

    kind: Kind
    flops: float
    moved_bytes: float
    """Activations read and written."""
    weight_bytes: float
    axes: Pairs
    """Axes that split it: the activation's, and the weight's while it is in use."""


@dataclass(frozen=True)
class Exchange:
    """Communication caused by a split axis, with bytes of all devices."""

    kind: Literal["attention", "reduce", "halo", "output"]
    on: str
    """Logical axis that causes it; empty for an output."""
    sent_bytes: float
    axes: Pairs
    """Axes of the value that is sent."""
    heads: int = 1
    kv_bytes: float = 0
    """Bytes of attention's keys and values; `sent_bytes` also has the queries and the result."""


@dataclass
class Work:
    """Operations and communication of one traced program, each with its number of executions."""

    ops: Counter[Op] = field(default_factory=Counter)
    exchanges: Counter[Exchange] = field(default_factory=Counter)

    @property
    def flops(self) -> float:
        """FLOPs of all products of the program, with repetitions."""
        return sum(op.flops * count for op, count in self.ops.items())


def work_of(
    jaxpr: Any, arguments: Sequence[Tag], least: bool = False
) -> tuple[Work, dict[Any, Tag]]:
    """Count the operations of a closed jaxpr, and compute the tag of every value.

    Args:
        arguments: tags of the jaxpr's arguments.
        least: whether to count the cheapest branch of a `cond` instead of the most expensive.
    """
    walk = _Walk(Work(), least)
    tags = walk.run(jaxpr.jaxpr, arguments, 1)
    for tag, atom in zip(tags, jaxpr.jaxpr.outvars, strict=True):
        if tag.sizes:
            entry = Exchange("output", "", nbytes(atom.aval), pairs(tag.sizes))
            walk.work.exchanges[entry] += 1
    return walk.work, walk.tags


def nbytes(aval: Any) -> float:
    """Return the bytes of an abstract value."""
    size: float = float(math.prod(aval.shape)) * np.dtype(aval.dtype).itemsize
    return size


ROWS = ("image_rows", "rows")
"""Row axes of images: of the autoencoder, and of the network."""


def pairs(sizes: Sizes, picture: bool = False) -> Pairs:
    """Drop one axis of each pair that shares devices: rows or tokens, rows or columns."""
    others = {"image_columns"} if "image_rows" in sizes else set()
    if picture and "rows" in sizes:
        others.add("tokens")
    elif "tokens" in sizes:
        others.add("rows")
    return tuple(sorted((axis, size) for axis, size in sizes.items() if axis not in others))


class _Walk:
    """Visitor of a jaxpr's equations, in order, including those of inner jaxprs."""

    def __init__(self, work: Work, least: bool = False) -> None:
        self.work = work
        self.least = least
        self.tags: dict[Any, Tag] = {}

    def run(self, jaxpr: Any, arguments: Sequence[Tag], times: int) -> list[Tag]:
        tags_by_var: dict[Any, Tag] = dict(zip(jaxpr.invars, arguments, strict=True))
        tags_by_var |= {var: Tag() for var in jaxpr.constvars}

        def tag(atom: Any) -> Tag:
            return Tag() if isinstance(atom, jax_internals.Literal) else tags_by_var[atom]

        for equation in jaxpr.eqns:
            tags = [tag(atom) for atom in equation.invars]
            tags_by_var |= dict(
                zip(equation.outvars, self.equation(equation, tags, times), strict=True)
            )
        self.tags |= tags_by_var
        return [tag(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, tags: list[Tag], times: int) -> list[Tag]:
        rule = getattr(self, f"_{equation.primitive.name}", None)
        if rule is not None:
            return list(rule(equation, tags, times))
        inner = inner_jaxpr(equation)
        if inner is not None:
            return self.run(inner, tags[len(tags) - len(inner.invars) :], times)
        return [_elementwise(equation, tags, var) for var in equation.outvars]

    def _scan(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        params = equation.params
        consts, carry = jax_internals.scan_counts(params)
        body = params["jaxpr"].jaxpr
        entries = [
            Tag(dims=tag.dims[1:]) if tag.dims is not None else tag
            for tag in tags[consts + carry :]
        ]
        # First pass without counting: the body may split a carry that is unsplit at the start.
        first = _Walk(Work(), self.least).run(body, [*tags[: consts + carry], *entries], times)
        carried = [
            Tag(union(a.sizes, b.sizes))
            for a, b in zip(tags[consts : consts + carry], first[:carry], strict=True)
        ]
        results = self.run(body, [*tags[:consts], *carried, *entries], times * params["length"])
        yield from results

    def _while(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        """Count a `while` loop's body once: the number of iterations is unknown."""
        params = equation.params
        body = params["body_jaxpr"].jaxpr
        return iter(self.run(body, tags[params["cond_nconsts"] :], times))

    def _cond(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        """Count the most expensive branch of a `cond`: a step cache may have to run all blocks."""
        walks = [_Walk(Work(), self.least) for _ in chosen_branches(equation)]
        results = [
            walk.run(branch.jaxpr, tags[1:], times)
            for walk, branch in zip(walks, chosen_branches(equation), strict=True)
        ]
        for walk in walks:
            self.tags |= walk.tags
        choose = min if self.least else max
        chosen = choose(range(len(walks)), key=lambda branch_index: walks[branch_index].work.flops)
        self.work.ops.update(walks[chosen].work.ops)
        self.work.exchanges.update(walks[chosen].work.exchanges)
        return iter(results[chosen])

    def _shard_map(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        placed = [
            Tag(union(tag.sizes, _sizes(spec, atom.aval)), logits=tag.logits)
            for tag, spec, atom in zip(
                tags, equation.params["in_specs"], equation.invars, strict=True
            )
        ]
        return iter(self.run(equation.params["jaxpr"], placed, times))

    def _sharding_constraint(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        shape = equation.invars[0].aval.shape
        yield constrained(axes_of(equation.params["sharding"].spec, len(shape)), shape, tags[0])

    def _transpose(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        tag = tags[0]
        order = equation.params["permutation"]
        yield tag if tag.dims is None else Tag(dims=tuple(tag.dims[i] for i in order))

    def _reshape(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        tag = tags[0]
        before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        yield tag if tag.dims is None else Tag(dims=reshaped(tag.dims, before, after))

    _squeeze = _reshape

    def _dynamic_slice(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        """Keep the tag of a layer's weights that are sliced out of a stack."""
        yield tags[0] if tags[0].is_weight else activation(tags[:1])

    def _dot_general(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        (contracted, batched) = equation.params["dimension_numbers"]
        left, right = (atom.aval for atom in equation.invars)
        out = equation.outvars[0].aval
        flops = 2.0 * math.prod(out.shape) * math.prod(left.shape[i] for i in contracted[0])
        weights = [i for i, tag in enumerate(tags) if tag.is_weight]
        if not weights:
            yield self._product(equation, tags, flops, len(batched[0]), times)
            return
        which = weights[-1]
        weight, by = (left, right)[which], tags[which]
        other, seen = (left, right)[1 - which], tags[1 - which]
        assert by.dims is not None
        shape = in_use(by.dims, weight.shape)
        gone = {by.dims[i] for i in contracted[which]}
        summed = gone & shape.keys()
        # Heads and feed-forward may be joined before they are summed.
        lost = gone | set(INSIDE if summed else ())
        left_over = {a: n for a, n in union(seen.sizes, shape).items() if a not in lost}
        moved = nbytes(other) + nbytes(out)
        axes = pairs(union(seen.sizes, shape))
        self.work.ops[Op("matmul", flops, moved, nbytes(weight), axes)] += times
        for axis in summed:
            self.work.exchanges[Exchange("reduce", str(axis), nbytes(out), pairs(left_over))] += (
                times
            )
        yield Tag(left_over)

    def _product(
        self, equation: Any, tags: list[Tag], flops: float, batched: int, times: int
    ) -> Tag:
        """Count a product of two activations: attention's first or second, or a small product."""
        left, right = (atom.aval for atom in equation.invars)
        out = equation.outvars[0].aval
        sizes = dict(union(tags[0].sizes, tags[1].sizes))
        if batched < 2 or batched == len(out.shape):  # products of vectors are not attention
            moved = sum(map(nbytes, (left, right, out)))
            self.work.ops[Op("matmul", flops, moved, 0, pairs(sizes))] += times
            return Tag(sizes)
        heads = out.shape[1]
        if "heads" in sizes:
            sizes["heads"] = heads
        second = any(tag.logits for tag in tags)
        outside = [a for a, tag in zip((left, right), tags, strict=True) if not tag.logits]
        moved = sum(map(nbytes, outside)) + (nbytes(out) if second else 0)
        self.work.ops[Op("attention", flops, moved, 0, pairs(sizes))] += times
        if not second and all("tokens" in tag.sizes for tag in tags):
            keys = nbytes(right)
            entry = Exchange(
                "attention", "tokens", 2 * nbytes(left) + 2 * keys, pairs(sizes), heads, 2 * keys
            )
            self.work.exchanges[entry] += times
        return Tag(sizes, logits=not second)

    def _conv_general_dilated(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        image, kernel = (atom.aval for atom in equation.invars)
        out = equation.outvars[0].aval
        numbers = equation.params["dimension_numbers"]
        window = [kernel.shape[i] for i in numbers.rhs_spec[2:]]
        channels = kernel.shape[numbers.rhs_spec[1]]
        spread = math.prod(equation.params["lhs_dilation"])  # above 1 for a transposed convolution
        flops = 2.0 * math.prod(out.shape) * math.prod(window) * channels / spread
        seen, by = tags
        shape = in_use(by.dims, kernel.shape) if by.dims is not None else {}
        axes = pairs(union(seen.sizes, shape), picture=True)
        moved = nbytes(image) + nbytes(out)
        self.work.ops[Op("conv", flops, moved, nbytes(kernel), axes)] += times
        if len(window) > 1:
            border = nbytes(image) / image.shape[numbers.lhs_spec[-2]] * (window[-2] - 1)
            for axis in seen.sizes.keys() & set(ROWS) if border else ():
                entry = Exchange("halo", axis, border, pairs(seen.sizes, picture=True))
                self.work.exchanges[entry] += times
        yield Tag(seen.sizes)

    def _reduce_sum(self, equation: Any, tags: list[Tag], times: int) -> Iterator[Tag]:
        """Count the communication of a reduction over an image's rows, as in a group norm."""
        value, out = equation.invars[0].aval, equation.outvars[0].aval
        sizes = tags[0].sizes
        is_over_image = len(equation.params["axes"]) > 1 and value.ndim > 3
        for axis in sizes.keys() & set(ROWS) if is_over_image else ():
            rest = {name: size for name, size in sizes.items() if name == "batch"}
            self.work.exchanges[Exchange("reduce", axis, nbytes(out), pairs(rest))] += times
        yield _elementwise(equation, tags, equation.outvars[0])


def _elementwise(equation: Any, tags: list[Tag], var: Any) -> Tag:
    if tags and all(tag.is_weight for tag in tags) and len(tags) == 1:
        dims = tags[0].dims
        if dims is not None and len(dims) == len(var.aval.shape):
            return tags[0]
        return Tag(dims=(None,) * len(var.aval.shape))
    return activation(tags)


def _sizes(spec: Any, aval: Any) -> Mapping[str, int]:
    axes = axes_of(spec, len(aval.shape))
    return {axis: size for axis, size in zip(axes, aval.shape, strict=True) if axis is not None}


def is_by_platform(equation: Any) -> bool:
    """Return whether a `cond` chooses its branch by the platform it is compiled for."""
    return "branches_platforms" in equation.params


def chosen_branches(equation: Any) -> Any:
    """Return the branches of a jaxpr's `cond` that may run; by platform, only the last."""
    branches = equation.params["branches"]
    return branches[-1:] if is_by_platform(equation) else branches


def inner_jaxpr(equation: Any) -> Any:
    """Return the jaxpr of a call (jit, custom derivatives, checkpoint), or None."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(name)
        if inner is not None:
            return getattr(inner, "jaxpr", inner)
    return None
