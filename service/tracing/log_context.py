"""Context of log lines: request, key, job, pool and trace, set once per task.

Prompts and keys are never logged. Texts from elsewhere, such as exceptions, may quote a prompt,
which is removed before they are written.
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
MIN_CHARS = 4
"""Minimum length of a prompt that is removed, to distinguish it from other words."""
MAX_LINES = 100
"""Maximum number of lines of one prompt that are removed separately, as a bound for hostile
prompts."""

_process_fields: dict[str, str] = {}
_task_fields: ContextVar[Mapping[str, str] | None] = ContextVar("about", default=None)
_hidden: ContextVar[tuple[str, ...]] = ContextVar("hidden", default=())


def set_process_fields(**fields: str) -> None:
    """Set fields of all later log lines of this process, in all threads."""
    _process_fields.update(_check_names(fields))


def note(**fields: str | None) -> None:
    """Set fields of later log lines of this task and its child tasks; None removes a field."""
    merged = {**(_task_fields.get() or {}), **_check_names(fields)}
    _task_fields.set({name: value for name, value in merged.items() if value is not None})


@contextmanager
def log_fields(**fields: str | None) -> Iterator[None]:
    """Set fields of log lines written in this block; None removes a field."""
    token = _task_fields.set(_task_fields.get())
    note(**fields)
    try:
        yield
    finally:
        _task_fields.reset(token)


def context_fields() -> dict[str, str]:
    """Return the current fields of log lines, in the order of `FIELDS`."""
    fields = {**_process_fields, **(_task_fields.get() or {})}
    return {name: fields[name] for name in FIELDS if name in fields}


def hide_prompts(request: Mapping[str, Any]) -> None:
    """Remove a request's prompts from later log lines of this task and its child tasks.

    Args:
        request: fields of a request; names of prompt fields contain "prompt".
    """
    texts = [text for name, text in request.items() if "prompt" in name and isinstance(text, str)]
    forms = {form for text in texts for form in _spelled(text)}
    hidden = {*_hidden.get(), *(form for form in forms if len(form) >= MIN_CHARS)}
    _hidden.set(tuple(sorted(hidden, key=len, reverse=True)))


def _spelled(text: str) -> Iterator[str]:
    """Yield how a hidden text is written in messages and in indented tracebacks."""
    yield text
    yield from text.splitlines()[:MAX_LINES]
    yield repr(text)[1:-1]
    yield json.dumps(text)[1:-1]


def redacted(text: str) -> str:
    """Remove the hidden prompts from a text to be logged."""
    for prompt in _hidden.get():
        text = text.replace(prompt, HIDDEN)
    return text


def _check_names(fields: Mapping[str, T]) -> Mapping[str, T]:
    unknown = fields.keys() - set(FIELDS)
    if unknown:
        raise TypeError(f"log lines have no field {', '.join(sorted(unknown))}")
    return fields
