"""Context of a log line: request, key, job, pool, trace, wherever in the code it is written.

Never what a job asks for: prompts and keys have no place in logs. We write none; what others say,
such as the text of an exception, may quote a prompt, and is cleared of it before it is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T", str, str | None)

FIELDS = (*("request_id", "key_id", "job", "tenant", "pool", "trace_id", "span_id", "trace_flags"),)

HIDDEN = "[prompt]"
LEAST_CHARS = 4
"""Minimum length of a prompt that is distinguished from other words."""
MOST_LINES = 100
"""Maximum number of lines of one prompt searched for separately; a hostile one has any number."""

_everywhere: dict[str, str] = {}
_here: ContextVar[Mapping[str, str] | None] = ContextVar("about", default=None)
_hidden: ContextVar[tuple[str, ...]] = ContextVar("hidden", default=())


def everywhere(**fields: str) -> None:
    """Set fields of all later log lines of this process, in any of its threads."""
    _everywhere.update(_known(fields))


def note(**fields: str | None) -> None:
    """Set fields of later log lines of this task and of tasks that it begins; None removes one."""
    known = {**(_here.get() or {}), **_known(fields)}
    _here.set({name: value for name, value in known.items() if value is not None})


@contextmanager
def about(**fields: str | None) -> Iterator[None]:
    """Set fields of log lines written inside; None removes one."""
    token = _here.set(_here.get())
    note(**fields)
    try:
        yield
    finally:
        _here.reset(token)


def context_fields() -> dict[str, str]:
    """Return the fields known here and now, in the order of `FIELDS`."""
    known = {**_everywhere, **(_here.get() or {})}
    return {name: known[name] for name in FIELDS if name in known}


def hide_prompts(request: Mapping[str, Any]) -> None:
    """No line of this task, and of tasks that it begins, has them from now on.

    Args:
        request: fields of a request, whose prompts have that word in their names.
    """
    texts = [text for name, text in request.items() if "prompt" in name and isinstance(text, str)]
    forms = {form for text in texts for form in _spelled(text)}
    found = {*_hidden.get(), *(form for form in forms if len(form) >= LEAST_CHARS)}
    _hidden.set(tuple(sorted(found, key=len, reverse=True)))


def _spelled(text: str) -> Iterator[str]:
    """Yield the spellings of a text in messages and traces of exceptions, which indent groups."""
    yield text
    yield from text.splitlines()[:MOST_LINES]
    yield repr(text)[1:-1]
    yield json.dumps(text)[1:-1]


def cleared(text: str) -> str:
    """Replace prompts in a text that is logged here and now."""
    for prompt in _hidden.get():
        text = text.replace(prompt, HIDDEN)
    return text


def _known(fields: Mapping[str, T]) -> Mapping[str, T]:
    unknown = fields.keys() - set(FIELDS)
    if unknown:
        raise TypeError(f"log lines have no field {', '.join(sorted(unknown))}")
    return fields
