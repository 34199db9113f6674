"""Checks for NaN and infinity in decoded pixels and sound, before conversion to integers.

NaN becomes a black pixel when converted. The converting functions record whether their input is
finite (`record_finite`). `shown` collects the records while a program is traced, so functions in
between need not return them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

IMAGE, SOUND = "image", "sound"
"""Names of an output's parts."""

FiniteRecords = dict[str, jax.Array]
"""Finiteness by part of an output, bool []."""
_records: ContextVar[FiniteRecords | None] = ContextVar("notes", default=None)


class CheckedOutput(NamedTuple):
    """Output of a program that decodes or previews a row, with its finiteness."""

    decoded: Any
    """Pixels; a `Clip` if the video has sound."""
    finite: FiniteRecords

    @property
    def non_finite_part(self) -> str | None:
        """Name of a part of the output that is not finite; None: all parts are finite."""
        return next((part for part, is_finite in self.finite.items() if not is_finite), None)


def record_finite(values: Shaped[Array, ...], part: str = IMAGE) -> None:
    """Record whether a part of a traced output is finite, if records are being collected."""
    if _records.get() is not None:
        merge_records({part: jnp.isfinite(values).all()})


def merge_records(more: FiniteRecords) -> None:
    """Merge finiteness records, if they are collected; a part must be finite in both."""
    notes = _records.get()
    if notes is not None:
        notes |= {part: notes.get(part, True) & is_finite for part, is_finite in more.items()}


@contextmanager
def collecting_records() -> Iterator[FiniteRecords]:
    """Collect the finiteness records of code traced inside this context.

    A loop body is a separate trace and needs its own context.
    """
    notes: FiniteRecords = {}
    token = _records.set(notes)
    try:
        yield notes
    finally:
        _records.reset(token)


def decode_checked(function: Callable[..., Any], *arguments: Any) -> CheckedOutput:
    """Call a decoding function, and return its output with the finiteness records."""
    with collecting_records() as notes:
        decoded = function(*arguments)
    return CheckedOutput(decoded, notes)
