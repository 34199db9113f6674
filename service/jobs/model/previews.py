"""Schedule of previews that a client requested: evenly spread over the job's steps."""

from __future__ import annotations


def is_due(wanted: int, taken: int, step: int, steps: int) -> bool:
    """Return whether a job's next preview is due after this many of its steps."""
    return taken < wanted and step * (wanted + 1) >= steps * (taken + 1)
