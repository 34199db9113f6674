"""Command line `atelier`. Commands import their dependencies when they run, so `--help` is fast."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from deploy.cli import (
    admin,
    aliases,
    backup,
    bench,
    calibrate,
    compile,
    generate,
    jobs,
    keys,
    loras,
    plan,
    profile,
    read,
    serve,
    tenants,
    up,
    usage,
    verify,
    webhooks,
    worker,
)
from deploy.cli.late_parser import LateParser
from deploy.exit_codes import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    exit_code,
    say,
    undecoded_bytes,
)

__all__ = [
    "EXIT_CONFIG",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_UNREACHABLE",
    "EXIT_USAGE",
    "main",
]

COMMANDS = (
    *(up, serve, worker, generate, read, verify, jobs, loras),
    *(keys, tenants, aliases, webhooks, usage, admin, backup, plan, compile, profile, calibrate),
    bench,
)
"""Commands, in the order of `--help`."""


EXITS = (
    f"exit codes: 0 done; {EXIT_FAILED} refused or failed; {EXIT_USAGE} invalid arguments; "
    f"{EXIT_UNREACHABLE} no server answers; {EXIT_CONFIG} invalid settings or damaged checkpoint; "
    f"{EXIT_INTERRUPTED} interrupted"
)


class Version(argparse.Action):
    """Option `--version`, which looks the version up only when used."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"atelier {version('atelier')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    args = parser().parse_args(argv)
    if isinstance(sys.stdout, TextIOWrapper):  # paths may have bytes that are not UTF-8
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except UnicodeEncodeError as error:
        if not (place := undecoded_bytes(error)):
            raise
        say(f"atelier: an argument is not UTF-8 after {place}; change the terminal's encoding")
        return EXIT_USAGE
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        say(f"atelier: {error}")
        return code


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    root = argparse.ArgumentParser(
        prog="atelier",
        description="Generate images and video with "
        "SDXL, Flux, Chroma, FLUX.2, Z-Image, Qwen-Image, Krea 2, Wan and LTX-2",
        epilog=EXITS,
    )
    root.add_argument("--version", action=Version, help="show the version and exit")
    commands = root.add_subparsers(required=True, metavar="command", parser_class=LateParser)
    for command in COMMANDS:
        command.add(commands)
    return root


if __name__ == "__main__":
    sys.exit(main())
