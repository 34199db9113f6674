"""Options of a trace: all inputs, except its arguments, that determine the traced program.

Flax networks cannot pass them through every `__call__`, so a context variable holds them during a
trace. The tracing code creates them, and a network may replace some for a part of itself:

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
    """Options of one trace. Default: one device, exact products, uncut images, scanned layers."""

    layout: Layout | None = None
    """Layout of the mesh slice; None: one device, no arrays are split."""
    quant: EightBitProducts | None = None
    """Matrix products of layers with 8-bit weights; None: exact products."""
    strips: int = 1
    """Strips that each image is cut into (models/nn/layers/conv_strips.py); 1: uncut."""
    unroll: bool = False
    """Unroll scanned layers instead of compiling a loop.

    For training small networks on CPU, where a loop nearly doubles the time of a step. The compile
    time then grows with the number of layers."""
    adapters: RowAdapters | None = None
    """Adapters of the rows, for layers with a bank: traced arrays, arguments of the program. None:
    no row has any."""
    record: Callable[[Split], None] | None = None
    """Callback for each activation that the layout splits, in order; once for scanned layers. Does
    not change the program."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use these options for traces inside the context; then restore the previous ones."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


DEFAULTS = TraceOptions()
"""Options of a trace that sets none."""

_current: ContextVar[TraceOptions] = ContextVar("trace options", default=DEFAULTS)


def trace_options() -> TraceOptions:
    """Return the options of the current trace."""
    return _current.get()
