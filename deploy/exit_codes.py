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


_SURROGATES = ("\udc80", "\udcff")
_CONTEXT_CHARS = 24


class UsageError(Exception):
    """Error of a command line or settings; the message states what to change."""


class NotFound(Exception):
    """Error of a command on a missing item; the message states what exists."""


def exit_code(error: Exception) -> int | None:
    """Return the exit code of a command's expected error; None for a bug."""
    from models.checkpoint.folder import CheckpointError
    from service.settings.section import ConfigError

    if isinstance(error, UsageError):
        return EXIT_USAGE
    if isinstance(error, NotFound):
        return EXIT_FAILED
    return EXIT_CONFIG if isinstance(error, CheckpointError | ConfigError) else None


def undecoded_bytes(error: UnicodeEncodeError) -> str:
    """Return where a text has bytes of the command line that are not UTF-8; empty: nowhere.

    Python represents such bytes by lone surrogates. Source: PEP 383.
    """
    if not _SURROGATES[0] <= error.object[error.start] <= _SURROGATES[1]:
        return ""
    before = error.object[max(0, error.start - _CONTEXT_CHARS) : error.start]
    return repr(before) if before else "its start"


def say(text: str) -> None:
    """Print a message to standard error; standard output is for results."""
    print(text, file=sys.stderr)
