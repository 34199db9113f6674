"""Options of a trace: what decides, beside its arguments, which program it makes.

A flax network cannot take them through every `__call__`, so one context variable holds them while
a trace runs. Whoever traces makes them, and a network replaces some for a part of itself:

    with TraceOptions(layout).active():
        with replace(trace_options(), strips=8).active():
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from models.parallel.axis_rules import Layout, Split
from models.parallel.row_adapters import RowAdapters
from models.spec.quality_presets import EightBitProducts


@dataclass(frozen=True)
class TraceOptions:
    """Device, exact products, whole images and scanned layers, unless said otherwise."""

    layout: Layout | None = None
    """Layout of the mesh slice; None: one device, nothing is split."""
    quant: EightBitProducts | None = None
    """Matrix products of layers that have weights of 8 bits; None: exact ones."""
    strips: int = 1
    """Strips that each image is cut into (models/nn/layers/conv_strips.py); 1: it is whole."""
    unroll: bool = False
    """Run scanned layers one behind the other, without a loop.

    For training small networks on CPU, where a loop nearly doubles the time of a step; the price
    is a compile time that grows with the layers.
    """
    adapters: RowAdapters | None = None
    """Adapters of the rows that layers with a bank see; traced arrays, of the program's arguments.
    None: no row has any."""
    record: Callable[[Split], None] | None = None
    """Called with each activation that the layout splits, in order; of equal layers, once. Changes
    no program."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Trace with these options in here; afterwards with those of before."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


DEFAULTS = TraceOptions()
"""Options of a trace that nobody gave any."""

_current: ContextVar[TraceOptions] = ContextVar("trace options", default=DEFAULTS)


def trace_options() -> TraceOptions:
    """Return the options of the current trace."""
    return _current.get()
