"""The command line: each command imports what it needs when it runs, so `--help` is instant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from deploy.commands import bench, generate, keys, plan, profile, serve, up, worker
from deploy.commands.exits import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    exit_code,
    say,
)

__all__ = [
    "EXIT_CONFIG",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_UNREACHABLE",
    "EXIT_USAGE",
    "main",
]

COMMANDS = (up, serve, worker, generate, keys, plan, profile, bench)
"""In the order of `--help`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        say(f"atelier: {error}")
        return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="atelier", description="Pictures and clips from SDXL, Flux and Wan"
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
