"""Options shared by several commands, their parsers, and the resulting settings."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.exit_codes import UsageError

if TYPE_CHECKING:
    from service.settings.settings import Settings

Commands = Any
"""Result of `add_subparsers`; its class is private to argparse."""

LOG_LEVELS = ("debug", "info", "warning", "error")
DTYPES = ("float32", "bfloat16", "float16")
EIGHT_BIT = ("beside", "instead")
EIGHT_BIT_PRODUCTS = ("w8a16", "w8a8")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options of settings file, state folder, Redis and log level."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings file (default: atelier.toml)"
    )
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="folder for queue, outputs and compile cache"
    )
    parser.add_argument("--redis", metavar="URL", help="URL of a Redis or Valkey server")
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="log level (default: info)")


def add_reason(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add the option of an action's reason."""
    parser.add_argument("--reason", default=default, metavar="TEXT", help="why, for the audit log")


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server's listening address and API keys."""
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, metavar="N", help="port to listen on; 0: any free one (default: 8000)"
    )
    parser.add_argument(
        "--keys",
        action=argparse.BooleanOptionalAction,
        help="require API keys (default: unless only this machine can reach the server)",
    )


def settings_of(args: argparse.Namespace, **sections: Any) -> Settings:
    """Load the settings: file, then environment, then command line; the last wins."""
    from service.settings.settings import CONFIG_VARIABLE, load_settings

    if args.config:
        os.environ[CONFIG_VARIABLE] = str(args.config)
    chosen = without_none(
        state_dir=args.state,
        log_level=args.log_level,
        redis=without_none(url=args.redis),
        server=without_none(
            **{name: getattr(args, name, None) for name in ("host", "port", "keys")}
        ),
        **sections,
    )
    return load_settings(**{name: value for name, value in chosen.items() if value})


def make_state_folder(folder: Path) -> None:
    """Create the state folder of `atelier up`.

    Raises: ConfigError: it is not writable.
    """
    from service.settings.section import ConfigError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"state_dir: can't make the folder {str(folder)!r}: {error.strerror}; "
            "choose another one with --state"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"state_dir: nothing can be written into {str(folder)!r}; choose another one with"
            " --state"
        )


def text_of(file: str) -> str:
    """Return the text of a file, or of standard input for `-`.

    Raises: UsageError: it cannot be read.
    """
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}") from None


def without_none(**values: Any) -> dict[str, Any]:
    """Return those of the keyword arguments that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def mesh(text: str) -> str | dict[str, int]:
    """Parse a mesh option: `auto`, or `axis=size,…`."""
    if text == "auto":
        return text
    sizes = {}
    for part in text.split(","):
        axis, equals, size = part.partition("=")
        if not (axis and equals and size.lstrip("-").isdigit()):
            raise argparse.ArgumentTypeError(f"must be AXIS=N,… or auto, not {part!r}")
        sizes[axis.strip()] = int(size)
    return sizes


def count(text: str) -> int:
    """Parse a command option as an integer of at least 1."""
    return whole(text, least=1)


def whole(text: str, least: int = 0) -> int:
    """Parse a command option as an integer of at least `least`."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, not {text!r}") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"must be {least} or more")
    return value


def number(text: str) -> float:
    """Parse a command option as a finite number."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, not {text!r}")
    return value


def not_negative(text: str) -> float:
    """Parse a command option as a number of at least 0."""
    if (value := number(text)) < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def positive(text: str) -> float:
    """Parse a command option as a number above 0."""
    if (value := number(text)) <= 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def devices(text: str) -> range:
    """Parse a range of devices: `FIRST-LAST`, or a single number."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and int(first) <= int(last or first)):
        raise argparse.ArgumentTypeError(f"must be FIRST-LAST, not {text!r}")
    return range(int(first), int(last or first) + 1)
