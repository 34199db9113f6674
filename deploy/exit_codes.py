"""Ends of a command: its exit code, and what it says where it cannot be done."""

from __future__ import annotations

import sys

EXIT_FAILED = 1
"""The request was refused, or its job did not succeed."""
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_CONFIG = 78
"""No restart can mend it: settings or a checkpoint are wrong (`EX_CONFIG` of sysexits)."""
EXIT_INTERRUPTED = 130


class UsageError(Exception):
    """Error of a command line or settings that can't be done; says what to change."""


class NotThere(Exception):
    """Error of an act on something that is not there; says what there is."""


def exit_code(error: Exception) -> int | None:
    """Return the code of an error that says what to do; None for one that is ours to mend."""
    from models.checkpoint.folder import CheckpointError
    from service.settings.section import ConfigError

    if isinstance(error, UsageError):
        return EXIT_USAGE
    if isinstance(error, NotThere):
        return EXIT_FAILED
    return EXIT_CONFIG if isinstance(error, CheckpointError | ConfigError) else None


def say(text: str) -> None:
    """Print to people: standard output is for what was asked for."""
    print(text, file=sys.stderr)
