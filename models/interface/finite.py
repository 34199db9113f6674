"""Checks that pixels and sound are finite, of programs that return integers.

Converted to an integer, NaN is a black pixel. The functions that convert record whether their input
is finite (`note_finite`), and `shown` collects these records while a program is traced, so that no
function in between has to return them.
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
"""Parts of an output."""

Notes = dict[str, jax.Array]
"""Verdicts by part of an output, bool []: whether all of it is finite."""
_notes: ContextVar[Notes | None] = ContextVar("notes", default=None)


class Shown(NamedTuple):
    """Output of a program that decodes a row, or previews it."""

    decoded: Any
    """Pixels; a `Clip` where they have sound."""
    finite: Notes

    @property
    def broken(self) -> str | None:
        """Name of a part that is not finite; None: all are."""
        return next((part for part, is_finite in self.finite.items() if not is_finite), None)


def note_finite(values: Shaped[Array, ...], part: str = IMAGE) -> None:
    """Note whether a part of an output is finite, if anybody takes notes."""
    if _notes.get() is not None:
        note({part: jnp.isfinite(values).all()})


def note(more: Notes) -> None:
    """Add to the notes, if anybody takes any: what is not finite in either is not."""
    notes = _notes.get()
    if notes is not None:
        notes |= {part: notes.get(part, True) & is_finite for part, is_finite in more.items()}


@contextmanager
def taking_notes() -> Iterator[Notes]:
    """Take the notes of what is traced inside: of this trace, not of a loop's body around it."""
    notes: Notes = {}
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def shown(function: Callable[..., Any], *arguments: Any) -> Shown:
    """Return what a function decodes, and whether it is finite."""
    with taking_notes() as notes:
        decoded = function(*arguments)
    return Shown(decoded, notes)
