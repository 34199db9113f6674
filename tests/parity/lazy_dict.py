"""Dictionary of test values made on first access, because the gate runs only a few cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class LazyDict(dict[str, T]):
    """Values by name, each made once on first access.

    Args:
        make: function that makes the value of a name.
    """

    def __init__(self, make: Callable[[str], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> T:
        self[name] = self._make(name)
        return self[name]
