"""JAX's persistent compile cache: configuration, and metrics of its hits and misses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jax

from models.parallel import jax_internals
from service.jobs.storage.private_folders import check_owner, private_folder
from workers import metrics

log = logging.getLogger(__name__)

EVENTS = {
    "/jax/compilation_cache/cache_hits": "hit",
    "/jax/compilation_cache/cache_misses": "miss",
}
"""Names of JAX's monitoring events, and their label values."""

_heard = threading.local()


def use_compile_cache(folder: Path) -> None:
    """Store every program of this process in a folder, including small ones.

    Raises: ConfigError: the folder belongs to another user, whose programs would run here.
    """
    _count()
    try:
        if private_folder(folder, "compile_cache", deep=False):
            _drop_foreign(folder)
    except OSError as error:
        log.warning("compile_cache: %s cannot be used: %s", folder, error.strerror)
    jax.config.update("jax_compilation_cache_dir", str(folder.resolve()))
    jax_internals.reset_cache()  # JAX would continue with a folder it has already opened
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _drop_foreign(folder: Path) -> None:
    """Delete cache files that others may have written, since JAX does not check ownership."""
    for path in folder.iterdir():
        try:
            check_owner(path.lstat(), path)
        except FileNotFoundError:  # another worker starts too
            continue
        except PermissionError as error:
            log.warning("a compiled program is not used and deleted: %s", error)
            if not path.is_dir():
                path.unlink(missing_ok=True)


@cache
def _count() -> None:
    """Register the listener for cache metrics once per process."""

    def record_event(event: str, **details: Any) -> None:
        if event in EVENTS:
            metrics.compile_cache.labels(EVENTS[event]).inc()
            getattr(_heard, "answers", []).append(EVENTS[event])

    jax.monitoring.register_event_listener(record_event)


@contextmanager
def answers() -> Iterator[list[str]]:
    """Collect the results of compile cache lookups by this thread inside the context."""
    lookups: list[str] = []
    _heard.answers = lookups
    try:
        yield lookups
    finally:
        del _heard.answers
