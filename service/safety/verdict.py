"""Verdict of the safety hook, and exceptions for refusals and missing verdicts."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from service.errors.problems import Malformed
from service.http.json_reader import parse_object

MAX_REASON_CHARS = 500
NO_REASON = "no reason was given"


class NoVerdict(Exception):
    """Missing verdict of the safety hook. The message states the reason."""


class SafetyBusy(Exception):
    """Rejection because too many safety checks of one client wait."""


class SafetyRefused(Exception):
    """Refusal by the safety hook. The message is its reason."""


class Verdict(BaseModel):
    """Verdict of the safety hook. Further members are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    allow: bool
    reason: Annotated[str, Field(validate_default=True)] = ""
    """Reason of a refusal, shown to clients. Null is accepted as empty."""

    @field_validator("allow", mode="before")
    @classmethod
    def _plain(cls, allow: object) -> object:
        """Accept NumPy's booleans, which comparisons of classifier scores return."""
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
    """Parse the result of the hook's function: a boolean, or a verdict's members.

    Raises: NoVerdict: neither.
    """
    try:
        is_bare = isinstance(answer, bool | np.bool_)
        return Verdict.model_validate({"allow": answer} if is_bare else answer)
    except ValidationError as error:
        raise NoVerdict(_no_verdict(error)) from None


def verdict_of_json(body: bytes) -> Verdict:
    """Parse the response of the hook's service. Raises: NoVerdict: not a verdict."""
    try:
        return Verdict.model_validate(parse_object(body, "answer"))
    except Malformed as error:  # for example, repeated members
        raise NoVerdict(f"it gave no verdict: {error.detail}") from None
    except ValidationError as error:
        raise NoVerdict(_no_verdict(error)) from None


def _no_verdict(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the answer"
    return f"it gave no verdict: {place}: {first['msg']}"
