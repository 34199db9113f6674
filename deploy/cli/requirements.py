"""Check of what pools need: images for front ends leave it out."""

from __future__ import annotations

from importlib.util import find_spec

from service.settings.installation import PREFIX, how_to_install

POOLS_NEED = ("jax", "flax", "transformers", f"{PREFIX}workers")
"""Packages of the extras `cpu`, `cuda` and `tpu`, and what images for front ends leave out."""


def check_pools() -> None:
    """Check that what workers need is installed.

    Raises: ConfigError: only what front ends and clients need is installed.
    """
    from service.settings.section import ConfigError

    missing = [name for name in POOLS_NEED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"pools need {missing[0]}, which is not installed: {how_to_install('cpu')}"
            " (or [cuda], [tpu]), or take a worker's image"
        )
