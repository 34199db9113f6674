"""Location of the installed code: the source tree, or a wheel that contains it as `atelier`."""

from __future__ import annotations

from pathlib import Path

PREFIX = __name__.partition("service.")[0]
"""Prefix of our packages' import names: empty in the source tree, `atelier.` in a wheel."""
IMPORT_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""Folder that our packages are imported from, independent of the working directory."""


def how_to_install(extra: str) -> str:
    """Describe how to install an extra, for an error message."""
    if PREFIX:
        return f"install the wheel with its extra, pip install 'WHEEL.whl[{extra}]'"
    return f"in the project's folder, pip install -e '.[{extra}]'"
