"""Warnings of libraries: all are counted, and each line of code that warns is logged once.

A hostile file may cause thousands of different warnings, such as one for each broken EXIF tag.
"""

from __future__ import annotations

import logging
import warnings
from typing import TextIO

from prometheus_client import Counter

log = logging.getLogger("py.warnings")

library_warnings = Counter(
    "atelier_library_warnings_total",
    "Warnings of libraries, such as about broken files of clients.",
    registry=None,
)
"""Counter of this process and its children; each process registers it where it exports metrics."""
_logged: set[tuple[str, int]] = set()
"""Files and line numbers of the warnings that were logged."""


def capture_warnings() -> None:
    """Count and log this process's warnings from now on.

    Python otherwise keeps each text in memory to recognize repetitions.
    """
    warnings.simplefilter("always", append=True)
    warnings.showwarning = _record


def _record(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    library_warnings.inc()
    if (filename, lineno) not in _logged:
        _logged.add((filename, lineno))
        log.warning("%s", warnings.formatwarning(message, category, filename, lineno, line))
