"""A TPU program's operations one by one, out of its text: what they are and how long they take.

Of its own operations the TPU's compiler notes the cycles that it expects; of kernels (Pallas's)
nothing, and of collectives nothing. Those are counted elsewhere: `hlo` has the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from workers.plan import hlo

Kind = Literal["product", "convolution", "elementwise", "copy", "kernel", "collective"]

_OPERATION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>.*?) (?P<code>[\w\-]+)\(")
_CALLS = re.compile(r"\bcalls=%?(?P<name>[\w.\-]+)")
_OPERANDS = re.compile(r"operand_layout_constraints=\{(?P<shapes>.*?)\}(?:, [a-z_]+=|$)")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")
_SOURCE = re.compile(r'op_name="(?P<name>[^"]*)"')
MOVES = frozenset(
    {"bitcast", "bitcast-convert", "broadcast", "concatenate", "constant", "copy", "dynamic-slice"}
    | {"dynamic-update-slice", "fusion", "get-tuple-element", "iota", "pad", "parameter"}
    | {"reshape", "slice", "transpose", "tuple"}
)
"""Operations that only move numbers to other places, as a fusion may hold them."""


@dataclass(frozen=True)
class Operation:
    """Operation of a computation; how often that runs beside it."""

    name: str
    kind: Kind
    """A fusion is a product or a convolution if it has one in it, and a copy if nothing is computed
    in it."""
    type: str
    """Shapes and layouts of what it makes."""
    operands: tuple[tuple[int, ...], ...]
    """Shapes of what a kernel reads; of others nothing."""
    source: str
    """Place in the traced program that it comes from."""
    cycles: int
    runs: int
    within: str
    """The computation that it stands in; loops' bodies are computations."""

    @property
    def total(self) -> int:
        """Cycles of all runs."""
        return self.cycles * self.runs


def operations(text: str) -> Iterator[Operation]:
    """Yield the operations that take time, in the order of the text.

    Args:
        text: `Compiled.as_text()`.
    """
    computations = hlo.computations(text)
    for name, runs in hlo.times(computations).items():
        for line in computations[name]:
            found = _operation(line, computations)
            if found is not None:
                kind, cycles, match = found
                source = _SOURCE.search(line)
                yield Operation(
                    match["name"],
                    kind,
                    match["type"],
                    _operands(line) if kind == "kernel" else (),
                    source["name"] if source else "",
                    cycles,
                    runs,
                    name,
                )


def _operation(
    line: str, computations: Mapping[str, list[str]]
) -> tuple[Kind, int, re.Match[str]] | None:
    match = _OPERATION.match(line)
    if match is None:
        return None
    cycles = hlo.cycles(line)
    code = _code(match, line)
    if 'custom_call_target="tpu_custom_call"' in line:
        return "kernel", cycles, match
    if code.removesuffix("-start") in hlo.KINDS:
        return "collective", cycles, match
    if not cycles:
        return None
    codes = {code, *_codes(line, computations)}
    kind: Kind = "elementwise"
    if "convolution" in codes:
        kind = "convolution"
    elif "dot" in codes:
        kind = "product"
    elif codes <= MOVES:
        kind = "copy"
    return kind, cycles, match


def _operands(line: str) -> tuple[tuple[int, ...], ...]:
    found = _OPERANDS.search(line)
    shapes = _SHAPE.findall(found["shapes"]) if found else []
    return tuple(tuple(int(size) for size in shape.split(",") if size) for shape in shapes)


def _codes(line: str, computations: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the codes of all that is fused, however deep."""
    called = _CALLS.search(line)
    for inner in computations.get(called["name"], ()) if called else ():
        match = _OPERATION.match(inner)
        if match:
            yield _code(match, inner)
            yield from _codes(inner, computations)


def _code(match: re.Match[str], line: str) -> str:
    """Return an operation's code.

    Every product is a convolution to a TPU's compiler; here those alone that were traced as one.
    """
    code = match["code"]
    return "dot" if code == "convolution" and "conv_general_dilated" not in line else code
