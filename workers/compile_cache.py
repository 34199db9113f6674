"""JAX's persistent compile cache: the second start reads what the first one compiled."""

from __future__ import annotations

from pathlib import Path

import jax


def keep_compiled(folder: Path) -> None:
    """Keep every program of this process in a folder, the small ones too."""
    jax.config.update("jax_compilation_cache_dir", str(folder.resolve()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
