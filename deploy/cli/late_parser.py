"""Parsers whose options are added when they are needed, since making them takes imports."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any


class LateParser(argparse.ArgumentParser):
    """Parser of one command.

    Args:
        late: adds further arguments, once, before the parser reads a line or shows its help.
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
        """Add what is added late."""
        late, self._late = self._late, None
        if late:
            late(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse, with all arguments there."""
        self.complete()
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """Return the help, with all arguments in it."""
        self.complete()
        return super().format_help()
