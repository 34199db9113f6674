"""Exit codes of commands, and the errors that lead to them."""

from __future__ import annotations

import sys

EXIT_FAILED = 1
"""The request was refused, or its job did not succeed."""
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_CONFIG = 78
"""Invalid settings or checkpoint, which a restart cannot fix (`EX_CONFIG` of sysexits)."""
EXIT_INTERRUPTED = 130


class UsageError(Exception):
    """Error of a command line or settings; the message states what to change."""


class NotFound(Exception):
    """Error of an action on a missing item; the message states what exists."""


def exit_code(error: Exception) -> int | None:
    """Return the exit code of an expected error; None for a bug."""
    from models.checkpoint.folder import CheckpointError
    from service.settings.section import ConfigError

    if isinstance(error, UsageError):
        return EXIT_USAGE
    if isinstance(error, NotFound):
        return EXIT_FAILED
    return EXIT_CONFIG if isinstance(error, CheckpointError | ConfigError) else None


def say(text: str) -> None:
    """Print a message to standard error; standard output is for results."""
    print(text, file=sys.stderr)
