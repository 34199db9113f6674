"""Values that are made when a test asks for them: the gate has few of the cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Lazily(dict[str, T]):
    """Values by name, each made once.

    Args:
        make: a value of its name.
    """

    def __init__(self, make: Callable[[str], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> T:
        self[name] = self._make(name)
        return self[name]
