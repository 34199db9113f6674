"""Options of a scheduler: their types and ranges, validation of a value, and the error of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Kind = Literal["number", "integer", "boolean", "text"]
_TYPES: Mapping[Kind, tuple[tuple[type, ...], str]] = {
    "number": ((int, float), "a number"),
    "integer": ((int,), "a whole number"),
    "boolean": ((bool,), "true or false"),
    "text": ((str,), "a text"),
}
"""Python types of each kind, and its name in error messages."""


class OptionError(ValueError):
    """Rejection of an option or of a request field, which `field` names, by a `message`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class Option(BaseModel):
    """Scheduler option, which front ends and workers validate alike."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    kind: Kind
    """Type of the value."""
    choices: tuple[str, ...] = ()
    """Allowed texts; empty: any."""
    minimum: float | None = None
    """Lowest allowed number; null: no minimum."""
    maximum: float | None = None
    """Highest allowed number; null: no maximum."""
    excludes: tuple[str, ...] = ()
    """Options that must not be true together with this option."""

    def error(self, value: Any) -> str | None:
        """Return what is wrong with an option's value; None: valid."""
        types, called = _TYPES[self.kind]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            return f"must be {called}"
        if self.choices and value not in self.choices:
            return f"must be {' or '.join(self.choices)}"
        return self._beyond(value)

    def _beyond(self, value: Any) -> str | None:
        if self.minimum is not None and not value >= self.minimum:  # also rejects NaN
            return f"must be at least {self.minimum:g}"
        if self.maximum is not None and not value <= self.maximum:
            return f"must be at most {self.maximum:g}"
        return None
