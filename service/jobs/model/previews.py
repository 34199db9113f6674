"""Previews that a client has asked for: spread evenly over the steps of its job."""

from __future__ import annotations


def is_due(wanted: int, taken: int, step: int, steps: int) -> bool:
    """Return whether the next of the wanted previews is due after so many of a job's steps."""
    return taken < wanted and step * (wanted + 1) >= steps * (taken + 1)
