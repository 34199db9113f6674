"""Reference page of the command line, generated from the argument parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import atelier
from deploy.cli.late_parser import LateParser
from tools.reference.markdown import table

HEAD = """# Command line

Written by `make reference` from the parsers of `atelier`. `atelier COMMAND --help` says the same.
"""
HIDDEN = argparse.SUPPRESS
EXITS = (
    ("0", "done"),
    (str(atelier.EXIT_FAILED), "refused, or the job failed"),
    (str(atelier.EXIT_USAGE), "invalid arguments"),
    (str(atelier.EXIT_UNREACHABLE), "no server answers"),
    (str(atelier.EXIT_CONFIG), "invalid settings or a damaged checkpoint; a restart does not help"),
    (str(atelier.EXIT_INTERRUPTED), "interrupted"),
)


def as_markdown() -> str:
    """Return the reference page of the command line."""
    commands = "\n\n".join(_command(*entry) for entry in _commands(atelier.parser(), ""))
    exits = table(("exit code", "meaning"), EXITS)
    return f"{HEAD}\n{commands}\n\n## Exit codes\n\n{exits}\n"


def _commands(
    parser: argparse.ArgumentParser, about: str
) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield every runnable parser below this one, with its help line."""
    if isinstance(parser, LateParser):
        parser.complete()
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below or parser.get_default("run"):
        yield parser, about
    for action in below:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, inner in action.choices.items():
            yield from _commands(inner, helps.get(name, ""))


def _command(parser: argparse.ArgumentParser, about: str) -> str:
    actions = [
        action
        for action in parser._actions
        if action.dest != "help"
        and action.help != HIDDEN
        and not isinstance(action, argparse._SubParsersAction)
    ]
    rows = [(_names(action), _help(parser, action)) for action in actions]
    text = parser.description or f"{about[:1].upper()}{about[1:]}."
    options = f"\n\n{table(('argument or option', 'meaning'), rows)}" if rows else ""
    return f"## `{parser.prog}`\n\n{' '.join(text.split())}{options}"


def _names(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 else f" {_value(action)}"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _value(action: argparse.Action) -> str:
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    metavar = action.metavar or action.dest.upper()
    return metavar if isinstance(metavar, str) else " ".join(metavar)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = action.help or ""
    return text % {**vars(action), "prog": parser.prog}
