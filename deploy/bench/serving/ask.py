"""Request of a load, and traces: files of requests that can be sent again."""

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
"""Fields of a request that change nothing of how much there is to do."""


class Part(BaseModel):
    """Part of a file: an unknown or misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TimedRequest(Part):
    """A request that is to leave at its instant, whatever became of those before it."""

    at_s: float = Field(ge=0)
    """Time after the load's beginning."""
    request: dict[str, Any]
    """The body of `POST /v1/generate`."""
    tenant: str = DEFAULT_TENANT
    deadline_scale: float | None = Field(None, gt=0)
    """Deadline as a multiple of what such a request takes on the unloaded server; a trace can name
    seconds instead, as `deadline_s` of the request."""

    @field_validator("request")
    @classmethod
    def _has_a_number(cls, request: dict[str, Any]) -> dict[str, Any]:
        said = request.get("deadline_s")
        if said is not None and (isinstance(said, bool) or not isinstance(said, int | float)):
            raise ValueError(f"deadline_s should be a number of seconds, not {said!r}")
        return request

    @property
    def model(self) -> str:
        """Name of the model that is asked for."""
        return str(self.request.get("model", ""))

    @property
    def shape(self) -> str:
        """Name of the request's size, steps and count."""
        return shape_of(self.request)

    def deadline_s(self, alone_s: float | None) -> float | None:
        """Seconds from its sending. Args: alone_s: what it takes on the unloaded server."""
        if self.deadline_scale is None or alone_s is None:
            said = self.request.get("deadline_s")
            return None if said is None else float(said)
        return self.deadline_scale * alone_s


def shape_of(request: Mapping[str, Any]) -> str:
    """Names requests that are equal work: model, size, and every other field that matters."""
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
    """The requests of a file of JSON lines, by their instants.

    Raises: UsageError: names the line that is wrong.
    """
    lines = enumerate(_text(path).split("\n"), 1)  # prompts may have other ends of lines in them
    asks = [_parsed(path, number, line) for number, line in lines if line.strip()]
    if not asks:
        raise UsageError(f"{str(path)!r} has no requests in it")
    return sorted(asks, key=lambda ask: ask.at_s)


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
    """Return what is wrong, by name."""
    wrong = ((".".join(map(str, one["loc"])), one["msg"]) for one in error.errors())
    return "; ".join(f"{name}: {said}" if name else said for name, said in wrong)


def write_trace(path: Path, asks: Iterable[TimedRequest]) -> None:
    """Write requests to a file, to be sent again.

    Raises: UsageError: nothing can be written there.
    """
    lines = (ask.model_dump_json(exclude_defaults=True) for ask in asks)
    try:
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    except OSError as error:
        raise UsageError(f"can't write {str(path)!r}: {error.strerror}") from None
