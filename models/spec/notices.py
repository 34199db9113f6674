"""Notices about what was ignored while a model was loaded, for its operator and clients."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

log = logging.getLogger(__name__)

_current: ContextVar[list[str] | None] = ContextVar("notices", default=None)


def notice(text: str) -> None:
    """Log a warning about a checkpoint, and add it to the notices that are being collected."""
    log.warning("%s", text)
    notices = _current.get()
    if notices is not None and text not in notices:
        notices.append(text)


@contextmanager
def collected_notices() -> Iterator[list[str]]:
    """Collect the notices of this thread inside the context, each once."""
    notices: list[str] = []
    token = _current.set(notices)
    try:
        yield notices
    finally:
        _current.reset(token)
