"""Base classes of script calls: arguments by name, texts, and the type of the answer."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer", covariant=True)

TEXT = {"is_text": True}
"""Metadata of a field that is sent as plain text for the script to store: a `str`, a sequence of
`str`, or None for no text."""


@dataclass(frozen=True)
class Common:
    """Arguments that every Lua script gets, used or not."""

    max_events: int
    """Maximum number of stored events of one job."""
    advance_s: float
    """Advance between tenants per level of priority, in device-seconds."""


@dataclass(frozen=True)
class Script(ABC, Generic[Answer]):
    """Base of calls of Lua scripts; the fields are the script's arguments.

    `AnnounceLater` calls announce_later.lua, whose header explains the arguments. Arguments that
    are None are not sent.
    """

    @classmethod
    @cache
    def name(cls) -> str:
        """Return the Lua script's name, which is also its file's name."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def args(self) -> dict[str, object]:
        """Return the Lua script's arguments by name."""
        arguments = ((name, getattr(self, name)) for name in self._names(is_text=False))
        return {name: value for name, value in arguments if value is not None}

    def texts(self) -> Iterator[str]:
        """Yield the Lua script's text arguments, in the order of their fields."""
        for value in (getattr(self, name) for name in self._names(is_text=True)):
            yield from (value,) if isinstance(value, str) else value or ()

    @classmethod
    @cache
    def _names(cls, is_text: bool) -> tuple[str, ...]:
        """Return the names of the Lua script's arguments, or of its texts."""
        return tuple(item.name for item in fields(cls) if bool(item.metadata) == is_text)

    @staticmethod
    @abstractmethod
    def parse(answer: Any) -> Answer:
        """Convert the Lua script's answer to its typed form."""


class ScriptWithoutAnswer(Script[None]):
    """Base of calls of Lua scripts without an answer."""

    @staticmethod
    def parse(answer: Any) -> None:
        """Ignore Redis's answer, and return None."""


@dataclass(frozen=True)
class ClaimScript(Script[Answer]):
    """Base of calls of scripts about one claim. Only the claim's holder may run most of them."""

    id: str
    """Id of the job."""
    fence: int


class AcknowledgedClaimScript(ClaimScript[bool]):
    """Base of calls of scripts that answer whether they were executed."""

    @staticmethod
    def parse(answer: Any) -> bool:
        """Return whether the Lua script was executed."""
        return bool(answer)
