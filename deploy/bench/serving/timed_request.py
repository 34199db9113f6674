"""Requests of a load, and trace files that replay them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from deploy.exit_codes import UsageError
from models.spec.request_images import IMAGE_FIELDS

DEFAULT_TENANT = "default"

SAME_WORK = frozenset(
    (
        "prompt",
        "negative_prompt",
        "prompt_2",
        "negative_prompt_2",
        "seed",
        "metadata",
        "webhook",
        "priority",
        "deadline_s",
    )
)
"""Request fields that do not affect the amount of computation."""


class Part(BaseModel):
    """Base of the parsed sections of load files; rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TimedRequest(Part):
    """Request with its planned sending time, which does not depend on other requests."""

    at_s: float = Field(ge=0)
    """Time after the load's start."""
    request: dict[str, Any]
    """The body of `POST /v1/generate`."""
    tenant: str = DEFAULT_TENANT
    deadline_scale: float | None = Field(None, gt=0)
    """Deadline as a multiple of the request's duration on the unloaded server. A trace can set
    seconds instead, as `deadline_s` of the request."""

    @field_validator("request")
    @classmethod
    def _has_a_number(cls, request: dict[str, Any]) -> dict[str, Any]:
        deadline_s = request.get("deadline_s")
        if deadline_s is not None and (
            isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float)
        ):
            raise ValueError(f"deadline_s should be a number of seconds, not {deadline_s!r}")
        return request

    @property
    def model(self) -> str:
        """Model that the timed request names."""
        return str(self.request.get("model", ""))

    @property
    def shape(self) -> str:
        """Name of the request's shape, which requests of equal computation share."""
        return shape_of(self.request)

    def deadline_s(self, alone_s: float | None) -> float | None:
        """Return the deadline in seconds after sending.

        Args:
            alone_s: duration on the unloaded server.
        """
        if self.deadline_scale is None or alone_s is None:
            seconds = self.request.get("deadline_s")
            return None if seconds is None else float(seconds)
        return self.deadline_scale * alone_s


def shape_of(request: Mapping[str, Any]) -> str:
    """Return a name that is equal for equal computation: model, size, and other relevant fields."""
    fields = {name: value for name, value in request.items() if name not in SAME_WORK}
    words = [str(fields.pop("model", "")) or "the only model"]
    if "width" in fields and "height" in fields:
        words.append(f"{fields.pop('width')}x{fields.pop('height')}")
    pictures = [f"+{name}" for name in sorted(IMAGE_FIELDS) if fields.pop(name, None) is not None]
    rest = (f"{name}={_word(value)}" for name, value in sorted(fields.items()))
    return " ".join([*words, *rest, *pictures])


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def read_trace(path: Path) -> list[TimedRequest]:
    """Read the requests of a JSON lines file, sorted by time.

    Raises: UsageError: names the invalid line.
    """
    lines = enumerate(_text(path).split("\n"), 1)  # prompts may contain other line separators
    entries = [_parsed(path, number, line) for number, line in lines if line.strip()]
    if not entries:
        raise UsageError(f"{str(path)!r} has no requests in it")
    return sorted(entries, key=lambda entry: entry.at_s)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read {str(path)!r}: {error}") from None


def _parsed(path: Path, number: int, line: str) -> TimedRequest:
    try:
        return TimedRequest.model_validate_json(line)
    except ValidationError as error:
        raise UsageError(f"{path}, line {number}: {explained(error)}") from None


def explained(error: ValidationError) -> str:
    """Format the validation errors of a load file with the names of the fields."""
    wrong = ((".".join(map(str, item["loc"])), item["msg"]) for item in error.errors())
    return "; ".join(f"{name}: {message}" if name else message for name, message in wrong)


def write_trace(path: Path, entries: Iterable[TimedRequest]) -> None:
    """Write requests to a trace file.

    Raises: UsageError: the file cannot be written.
    """
    lines = (entry.model_dump_json(exclude_defaults=True) for entry in entries)
    try:
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    except OSError as error:
        raise UsageError(f"can't write {str(path)!r}: {error.strerror}") from None
