"""What a log line is about: job, tenant, pool and trace, wherever in the code it is written.

Never what a job asks for: prompts and keys have no place in logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

FIELDS = ("job", "tenant", "pool", "trace_id", "span_id")

_everywhere: dict[str, str] = {}
_here: ContextVar[Mapping[str, str] | None] = ContextVar("about", default=None)


def everywhere(**fields: str) -> None:
    """Of all that this process says, in any of its threads, from now on."""
    _everywhere.update(_known(fields))


def note(**fields: str) -> None:
    """Of all that is said from now on in this task, and in tasks that it begins."""
    _here.set({**(_here.get() or {}), **_known(fields)})


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Of what is said in here."""
    token = _here.set({**(_here.get() or {}), **_known(fields)})
    try:
        yield
    finally:
        _here.reset(token)


def told() -> dict[str, str]:
    """What is known here and now, in the order of `FIELDS`."""
    known = {**_everywhere, **(_here.get() or {})}
    return {name: known[name] for name in FIELDS if name in known}


def _known(fields: Mapping[str, str]) -> Mapping[str, str]:
    unknown = fields.keys() - set(FIELDS)
    if unknown:
        raise TypeError(f"log lines have no field {', '.join(sorted(unknown))}")
    return fields
