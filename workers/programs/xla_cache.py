"""JAX's persistent compile cache: the second start reads what the first one compiled."""

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
from service.jobs.storage.private_folders import check_own, private_folder
from workers import metrics

log = logging.getLogger(__name__)

EVENTS = {
    "/jax/compilation_cache/cache_hits": "hit",
    "/jax/compilation_cache/cache_misses": "miss",
}
"""Events as JAX names them."""

_heard = threading.local()


def use_compile_cache(folder: Path) -> None:
    """Keep every program of this process in a folder, the small ones too.

    Raises: ConfigError: the folder belongs to another user, whose programs would run here.
    """
    _count()
    try:
        if private_folder(folder, "compile_cache", deep=False):
            _drop_foreign(folder)
    except OSError as error:
        log.warning("compile_cache: %s cannot be used: %s", folder, error.strerror)
    jax.config.update("jax_compilation_cache_dir", str(folder.resolve()))
    jax_internals.reset_cache()  # JAX keeps to the folder that it has opened, if any
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _drop_foreign(folder: Path) -> None:
    """Delete what others may have written: JAX looks at nobody's owner."""
    for path in folder.iterdir():
        try:
            check_own(path.lstat(), path)
        except FileNotFoundError:  # another pool starts too
            continue
        except PermissionError as error:
            log.warning("a compiled program is not used and deleted: %s", error)
            if not path.is_dir():
                path.unlink(missing_ok=True)


@cache
def _count() -> None:
    """Once a process: JAX tells all of its listeners of each program."""

    def hear(event: str, **details: Any) -> None:
        if event in EVENTS:
            metrics.compile_cache.labels(EVENTS[event]).inc()
            getattr(_heard, "answers", []).append(EVENTS[event])

    jax.monitoring.register_event_listener(hear)


@contextmanager
def answers() -> Iterator[list[str]]:
    """Collect what the cache answers to whatever this thread compiles inside."""
    heard: list[str] = []
    _heard.answers = heard
    try:
        yield heard
    finally:
        del _heard.answers
