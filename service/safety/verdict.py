"""Verdict of the safety hook, and what there is instead of one."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from service.errors.problems import Malformed
from service.http.json_reader import parse_object

MAX_REASON_CHARS = 500
NO_REASON = "no reason was given"


class SafetyAbsent(Exception):
    """The hook gave no verdict; says why."""


class SafetyBusy(Exception):
    """Too many checks of the same client wait already."""


class SafetyRefused(Exception):
    """The hook refused; the message is its reason."""


class Verdict(BaseModel):
    """Answer of the hook. Further members are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    allow: bool
    reason: Annotated[str, Field(validate_default=True)] = ""
    """Reason of a refusal, which clients are shown. Null is none, as programs write that, too."""

    @field_validator("allow", mode="before")
    @classmethod
    def _plain(cls, allow: object) -> object:
        """A comparison of a classifier's scores is NumPy's own kind of truth."""
        return bool(allow) if isinstance(allow, np.bool_) else allow

    @field_validator("reason", mode="before")
    @classmethod
    def _none(cls, reason: object) -> object:
        return "" if reason is None else reason

    @field_validator("reason")
    @classmethod
    def _shown(cls, reason: str) -> str:
        printable = "".join(char if char.isprintable() else " " for char in reason)
        return printable.strip()[:MAX_REASON_CHARS] or NO_REASON


def verdict_of(answer: object) -> Verdict:
    """Read what a function returned: true, false, or a verdict's members.

    Raises: SafetyAbsent: it is neither.
    """
    try:
        is_bare = isinstance(answer, bool | np.bool_)
        return Verdict.model_validate({"allow": answer} if is_bare else answer)
    except ValidationError as error:
        raise SafetyAbsent(_no_verdict(error)) from None


def verdict_of_json(body: bytes) -> Verdict:
    """Read what a service answered. Raises: SafetyAbsent: it is no verdict."""
    try:
        return Verdict.model_validate(parse_object(body, "answer"))
    except Malformed as error:  # it may have said both
        raise SafetyAbsent(f"it gave no verdict: {error.detail}") from None
    except ValidationError as error:
        raise SafetyAbsent(_no_verdict(error)) from None


def _no_verdict(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the answer"
    return f"it gave no verdict: {place}: {first['msg']}"
