"""Programs that tests have compiled, kept for other processes of the tests and for other runs.

JAX's own persistent cache: its keys are of the program, the options and the versions, so that a
changed network is compiled anew. Tests of that cache, and of single pools, have folders of their
own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "TESTS_COMPILE_CACHE"
"""Variable with the folder; empty: nothing is kept. By default one in the user's cache."""
MOST_BYTES, LEAST_BYTES = 3 << 30, 1 << 30
"""Beyond the first of them the oldest programs go, until the second is reached."""


SMALL_ONES = {
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": 0,
}
"""Options of JAX by which the small programs are kept too."""


def folder() -> Path | None:
    """Return the folder for this machine's processor, or None."""
    named = os.environ.get(FOLDER)
    if named == "":
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named or cache / "atelier-tests") / _processor()


def folder_of_systems() -> Path | None:
    """Make the folder for whole systems that tests start, and return it, or None."""
    kept = folder()
    if kept is None:
        return None
    (kept / "systems").mkdir(mode=0o700, parents=True, exist_ok=True)
    return kept / "systems"


def environment() -> dict[str, str]:
    """Return the variables by which another process reads and writes there."""
    place = folder()
    options = {"jax_compilation_cache_dir": place, **SMALL_ONES} if place else {}
    return {name.upper(): str(value) for name, value in options.items()}


def _processor() -> str:
    """Return a digest of what the processor can do: code for one may not run on another."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    able = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join(able).encode()).hexdigest()[:16]


@contextmanager
def kept() -> Iterator[None]:
    """Read and write there what this process compiles meanwhile."""
    import jax

    from models.parallel import jax_internals

    options = {"jax_compilation_cache_dir": str(folder() or "") or None, **SMALL_ONES}
    before = {name: jax.config.values[name] for name in options}

    def use(options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            jax.config.update(name, value)
        jax_internals.reset_cache()  # JAX keeps to the folder that it has opened, if any

    use(options)
    yield
    use(before)


def prune() -> None:
    """Delete the oldest programs where there are too many."""
    place = folder()
    files = [path for path in place.parent.rglob("*") if path.is_file()] if place else []
    sizes = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in files)
    total = sum(size for _, size, _ in sizes)
    if total <= MOST_BYTES:
        return
    for _, size, file in sizes:
        if total <= LEAST_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= size
