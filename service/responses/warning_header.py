"""Header with a job's warnings, for responses in formats that have no place for them."""

from __future__ import annotations

from collections.abc import Sequence

from service.jobs.model.job import FieldWarning

NAME = "X-Atelier-Warnings"
MAX_CHARS = 2000
"""Maximum length of the header. Proxies accept 4 to 8 KB of headers in all."""
_CUT = " ..."


def warning_header(warnings: Sequence[FieldWarning]) -> dict[str, str]:
    """Build the header with a job's warnings: fields and messages, in ASCII and on one line."""
    if not warnings:
        return {}
    text = "; ".join(f"{warning.field}: {warning.message}" for warning in warnings)
    line = "".join(char if char.isprintable() else " " for char in text)
    line = line.encode("ascii", "backslashreplace").decode()
    return {NAME: line if len(line) <= MAX_CHARS else line[: MAX_CHARS - len(_CUT)] + _CUT}
