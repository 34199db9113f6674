"""Argument parser that adds expensive options on first use."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any


class LateParser(argparse.ArgumentParser):
    """Argument parser of one command, whose options are added when they are needed.

    Args:
        late: adds further arguments, once, before the parser parses or formats its help.
    """

    def __init__(
        self,
        *args: Any,
        late: Callable[[argparse.ArgumentParser], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._late = late

    def complete(self) -> None:
        """Add the deferred arguments to the parser, once."""
        late, self._late = self._late, None
        if late:
            late(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Add the deferred options to the parser, and parse the command line."""
        self.complete()
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """Add the deferred arguments, and return the help."""
        self.complete()
        return super().format_help()
