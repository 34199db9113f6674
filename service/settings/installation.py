"""Facts of how this code is installed: as the source tree, or out of a wheel as `atelier`."""

from __future__ import annotations

from pathlib import Path

PREFIX = __name__.partition("service.")[0]
"""Prefix of our packages' import names: empty in the source tree, `atelier.` from a wheel."""
IMPORT_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""Folder that our packages are imported from, whatever this process's folder is."""


def how_to_install(extra: str) -> str:
    """Return the words that say how to install an extra, for an error message."""
    if PREFIX:
        return f"install the wheel with its extra, pip install 'WHEEL.whl[{extra}]'"
    return f"in the project's folder, pip install -e '.[{extra}]'"
