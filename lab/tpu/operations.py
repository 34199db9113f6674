"""Operations of a compiled TPU program, parsed from its text: kind, cycles and runs.

The TPU compiler annotates its own operations with expected cycles, but neither Pallas kernels nor
collectives. `hlo` counts the collectives' bytes.
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
"""Operations inside a fusion that only move data."""


@dataclass(frozen=True)
class Operation:
    """Operation of a computation, with the computation's number of runs."""

    name: str
    kind: Kind
    """A fusion counts as product or convolution if it has one, as copy if it computes nothing."""
    type: str
    """Shapes and layouts of the result."""
    operands: tuple[tuple[int, ...], ...]
    """Shapes of a kernel's operands; empty for other kinds."""
    source: str
    """Location in the traced program."""
    cycles: int
    runs: int
    within: str
    """Name of the computation that contains it; loop bodies are computations."""

    @property
    def total(self) -> int:
        """Cycles of all runs of the operation."""
        return self.cycles * self.runs


def operations(text: str) -> Iterator[Operation]:
    """Yield the operations that take time, in the order of the text.

    Args:
        text: `Compiled.as_text()`.
    """
    computations = hlo.computations(text)
    for name, runs in hlo.times(computations).items():
        for line in computations[name]:
            parsed = _operation(line, computations)
            if parsed is not None:
                kind, cycles, match = parsed
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
    constraints = _OPERANDS.search(line)
    shapes = _SHAPE.findall(constraints["shapes"]) if constraints else []
    return tuple(tuple(int(size) for size in shape.split(",") if size) for shape in shapes)


def _codes(line: str, computations: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the opcodes of all fused operations, including nested fusions."""
    called = _CALLS.search(line)
    for inner in computations.get(called["name"], ()) if called else ():
        match = _OPERATION.match(inner)
        if match:
            yield _code(match, inner)
            yield from _codes(inner, computations)


def _code(match: re.Match[str], line: str) -> str:
    """Return an operation's opcode.

    The TPU compiler turns every product into a convolution. Only those traced as convolutions are
    reported as one.
    """
    code = match["code"]
    return "dot" if code == "convolution" and "conv_general_dilated" not in line else code
