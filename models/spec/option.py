"""Options of a scheduler: what each may be, and the one check of a value."""

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
"""Types that a value of a kind may have, and what the kind is called in errors."""


class Option(BaseModel):
    """Option of a scheduler, as front ends and workers check it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    kind: Kind
    """Type of its value."""
    choices: tuple[str, ...] = ()
    """Texts that it may be; empty: any."""
    minimum: float | None = None
    """Lowest number that it may be; null: any."""
    maximum: float | None = None
    """Highest number that it may be; null: any."""
    excludes: tuple[str, ...] = ()
    """Options that may not be true beside this one."""

    def error(self, value: Any) -> str | None:
        """Say what is wrong with a value; None: nothing."""
        types, called = _TYPES[self.kind]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            return f"must be {called}"
        if self.choices and value not in self.choices:
            return f"must be {' or '.join(self.choices)}"
        return self._beyond(value)

    def _beyond(self, value: Any) -> str | None:
        if self.minimum is not None and not value >= self.minimum:  # a NaN is not
            return f"must be at least {self.minimum:g}"
        if self.maximum is not None and not value <= self.maximum:
            return f"must be at most {self.maximum:g}"
        return None
