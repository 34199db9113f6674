"""Lines of a batch's file: where each lies, and what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.batches.endpoint import BatchEndpoint
from service.errors.handlers import field_errors
from service.errors.problems import FieldError, Invalid, Malformed, Problem
from service.http.json_reader import parse_object
from service.jobs.model.batch import LineError
from service.jobs.storage.object_store import Store
from service.settings.batches import BatchSettings

CHUNK_BYTES = 2**20
"""Bytes of a file that are read and checked at a time, in a thread."""
MAX_ERRORS = 100
"""Maximum number of lines at fault that are told of."""


class BatchLine(BaseModel):
    """One line of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    custom_id: str = Field(min_length=1, max_length=512)
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


@dataclass(frozen=True)
class LinePlace:
    """Range of bytes of a line in its file, without the line's end."""

    start: int
    end: int
    custom_id: str = ""
    """Name that the client gave it."""


class BatchError(Exception):
    """The file cannot be worked off."""

    def __init__(self, errors: list[LineError]) -> None:
        super().__init__("; ".join(error.message for error in errors[:3]))
        self.errors = errors


def parse_line(data: bytes) -> BatchLine:
    """Read a line. Raises: Invalid, Malformed."""
    try:
        return BatchLine.model_validate(parse_object(data, "line"))
    except Malformed as error:
        raise Malformed(error.detail, code="invalid_json_line") from None
    except ValidationError as error:
        raise Invalid(field_errors(error.errors(include_input=False, include_url=False))) from None


async def read_line(store: Store, key: str, place: LinePlace) -> BatchLine:
    """Read a line that was checked before. Raises: StoreError."""
    data = await store.get_range(key, place.start, place.end)
    return await asyncio.to_thread(parse_line, data)


@dataclass
class LineCheck:
    """Check of a file, line by line.

    Args:
        check_model: checks the name of a model, None of a line without one. Raises: Problem: there
            is no such model. None: no pool has registered any yet, and names are not checked.
    """

    endpoint: BatchEndpoint
    settings: BatchSettings
    check_model: Callable[[str | None], object] | None = None
    places: list[LinePlace] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)
    _line: int = 0
    _seen: set[str] = field(default_factory=set)

    async def run(self, chunks: AsyncIterator[bytes]) -> list[LinePlace]:
        """Return the places of all lines.

        Each chunk is checked in a thread: the event loop goes on meanwhile.

        Raises: BatchError: names the lines that are wrong.
        """
        rest, start = b"", 0
        async for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            start = await asyncio.to_thread(self._check_all, whole, start)
            self._check_bounds(rest)
        await asyncio.to_thread(self._check_all, [rest], start)
        self._check_bounds(b"")
        if not self.places and not self.errors:
            self.errors.append(LineError(code="empty_file", message="the file has no requests"))
        if self.errors:
            raise BatchError(self.errors)
        return self.places

    def _check_all(self, lines: list[bytes], start: int) -> int:
        """Check lines; return where the next one starts."""
        for data in lines:
            self._line += 1
            if data.strip():
                self._check(data, LinePlace(start, start + len(data)))
            start += len(data) + 1
        return start

    def _check(self, data: bytes, place: LinePlace) -> None:
        if len(self.errors) >= MAX_ERRORS or len(self.places) > self.settings.max_lines:
            return
        try:
            line = self._parsed(data)
            place = replace(place, custom_id=line.custom_id)
            self._check_names(line)
            request = self.endpoint.check(line.body)
            if self.check_model:
                self.check_model(request.model)
        except Problem as problem:
            self._add(problem)
        self.places.append(place)

    def _parsed(self, data: bytes) -> BatchLine:
        """Raises: Invalid, Malformed."""
        if len(data) > self.settings.max_line_bytes:
            raise self._too_long()
        return parse_line(data)

    def _too_long(self) -> Invalid:
        said = f"may have {self.settings.max_line_bytes} bytes"
        return Invalid([FieldError("line", said)], code="line_too_long")

    def _check_names(self, line: BatchLine) -> None:
        """Raises: Invalid."""
        if line.url != self.endpoint.url:
            said = f"the batch is for {self.endpoint.url}"
            raise Invalid([FieldError("url", said)], code="mismatched_endpoint")
        if line.custom_id in self._seen:
            said = f"{line.custom_id[:80]!r} is there twice"
            raise Invalid([FieldError("custom_id", said)], code="duplicate_custom_id")
        self._seen.add(line.custom_id)

    def _add(self, problem: Problem) -> None:
        param = problem.errors[0].field if problem.errors else None
        error = LineError(code=problem.code, message=problem.detail, line=self._line, param=param)
        self.errors.append(error)

    def _check_bounds(self, rest: bytes) -> None:
        """Raises: BatchError: there are too many lines, or one is too long."""
        if len(self.places) > self.settings.max_lines:
            said = f"the file has more than {self.settings.max_lines} requests"
            raise BatchError([LineError(code="too_many_requests", message=said)])
        if len(rest) > self.settings.max_line_bytes:
            self._line += 1
            self._add(self._too_long())
            raise BatchError(self.errors)


async def chunks_of(store: Store, key: str, size: int) -> AsyncIterator[bytes]:
    """Yield a file piece by piece. Raises: StoreError."""
    for start in range(0, size, CHUNK_BYTES):
        yield await store.get_range(key, start, min(size, start + CHUNK_BYTES))
