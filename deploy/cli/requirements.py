"""Packages that workers need, and imports of processes that last."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from service.settings.installation import PREFIX, how_to_install

POOLS_NEED = ("jax", "flax", "transformers", f"{PREFIX}workers")
"""Packages of the extras `cpu`, `cuda` and `tpu` that front-end images lack."""


def check_pools() -> None:
    """Verify that the workers' packages are installed.

    Raises: ConfigError: only those of front ends and clients are.
    """
    from service.settings.section import ConfigError

    missing = [name for name in POOLS_NEED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"pools need {missing[0]}, which is not installed: {how_to_install('cpu')}"
            " (or [cuda], [tpu]), or take a worker's image"
        )


@contextmanager
def lasting_objects() -> Iterator[None]:
    """Collect no garbage within the block, and none of its objects later.

    Otherwise, Python scans all imported objects several times during the imports, and again while
    a worker traces programs.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
