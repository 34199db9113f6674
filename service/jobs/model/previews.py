"""Schedule of previews that a client requested: evenly spread over the job's steps."""

from __future__ import annotations


def is_due(wanted: int, taken: int, step: int, steps: int) -> bool:
    """Return whether another preview is due after this many of a job's steps."""
    return taken < wanted and step * (wanted + 1) >= steps * (taken + 1)
