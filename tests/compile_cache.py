"""Cache of programs that tests compiled, for other test processes and later runs.

JAX's persistent cache: its keys depend on the program, options and versions, so a changed network
is compiled again. Tests of that cache, and of single pools, have their own folders.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "TESTS_COMPILE_CACHE"
"""Variable with the cache folder; empty: no cache. The default is in the user's cache folder."""
MAX_BYTES, MIN_BYTES = 3 << 30, 1 << 30
"""Above the first size, the oldest programs are deleted until the second is reached."""


SMALL_ONES = {
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": 0,
}
"""Options of JAX that also cache small programs."""


def folder() -> Path | None:
    """Return the folder for this machine's processor, or None."""
    named = os.environ.get(FOLDER)
    if named == "":
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named or cache / "atelier-tests") / _processor()


def folder_of_systems() -> Path | None:
    """Make the folder for complete systems that tests start, and return it, or None."""
    cache = folder()
    if cache is None:
        return None
    (cache / "systems").mkdir(mode=0o700, parents=True, exist_ok=True)
    return cache / "systems"


def environment() -> dict[str, str]:
    """Return the variables that make another process use the cache."""
    cache = folder()
    options = {"jax_compilation_cache_dir": cache, **SMALL_ONES} if cache else {}
    return {name.upper(): str(value) for name, value in options.items()}


def _processor() -> str:
    """Return a digest of the processor's features, because code for one may not run on another."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = sorted(
        {line for line in lines if line.startswith(("flags", "Features", "model name"))}
    )
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:16]


@contextmanager
def kept() -> Iterator[None]:
    """Cache the programs that this process compiles within the block."""
    import jax

    from models.parallel import jax_internals

    options = {"jax_compilation_cache_dir": str(folder() or "") or None, **SMALL_ONES}
    before = {name: jax.config.values[name] for name in options}

    def use(options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            jax.config.update(name, value)
        jax_internals.reset_cache()  # JAX otherwise keeps the folder that it has opened

    use(options)
    yield
    use(before)


def prune() -> None:
    """Delete the oldest programs if the cache is too large."""
    cache = folder()
    files = [path for path in cache.parent.rglob("*") if path.is_file()] if cache else []
    sizes = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in files)
    total = sum(size for _, size, _ in sizes)
    if total <= MAX_BYTES:
        return
    for _, size, file in sizes:
        if total <= MIN_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= size
