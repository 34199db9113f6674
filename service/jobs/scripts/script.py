"""Call of a Lua script: its arguments by name, its texts, and the type of its answer."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer", covariant=True)

TEXT = {"is_text": True}
"""Metadata of a field that is sent as it is, for the script to store: a `str`, a sequence of them,
or None for none."""


@dataclass(frozen=True)
class Common:
    """Arguments that every script is given, whether or not it uses them."""

    max_events: int
    """Events that are kept of one job."""
    advance_s: float
    """Device-seconds that one level of priority is worth between tenants."""


@dataclass(frozen=True)
class Script(ABC, Generic[Answer]):
    """Base of the scripts.

    `AnnounceLater` is announce_later.lua, whose header says what its arguments mean. An argument
    that is None is not sent.
    """

    @classmethod
    @cache
    def name(cls) -> str:
        """Return the script's name, of its file too."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def args(self) -> dict[str, object]:
        """Return the arguments by name."""
        given = ((name, getattr(self, name)) for name in self._names(is_text=False))
        return {name: value for name, value in given if value is not None}

    def texts(self) -> Iterator[str]:
        """Yield the texts, in the order of their fields."""
        for value in (getattr(self, name) for name in self._names(is_text=True)):
            yield from (value,) if isinstance(value, str) else value or ()

    @classmethod
    @cache
    def _names(cls, is_text: bool) -> tuple[str, ...]:
        """Return the names of the arguments, or of the texts."""
        return tuple(one.name for one in fields(cls) if bool(one.metadata) == is_text)

    @staticmethod
    @abstractmethod
    def parse(answer: Any) -> Answer:
        """Return Redis's answer, typed."""


class Silent(Script[None]):
    """Base of scripts that answer nothing."""

    @staticmethod
    def parse(answer: Any) -> None:
        """Pass over whatever Redis answers."""


@dataclass(frozen=True)
class OfClaim(Script[Answer]):
    """Base of scripts about one claim, most of which only its holder may run."""

    id: str
    """The job's."""
    fence: int


class IfHeld(OfClaim[bool]):
    """Base of those that answer whether they were carried out."""

    @staticmethod
    def parse(answer: Any) -> bool:
        """Return whether it was carried out."""
        return bool(answer)
