"""Lines of a batch's input file: parse and check them, and locate each by its byte range."""

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
"""Maximum number of wrong lines reported."""
MAX_MESSAGE_CHARS, MAX_PARAM_CHARS = 1000, 200
"""Maximum lengths of an error's texts, which Redis keeps with the batch. Messages may quote a
line."""


class BatchLine(BaseModel):
    """One request of a batch's input file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    custom_id: str = Field(min_length=1, max_length=512)
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


@dataclass(frozen=True)
class LineRange:
    """Byte range of a line in a batch's input file, without the line break."""

    start: int
    end: int
    custom_id: str = ""
    """Name that the client gave to the line."""


class BatchError(Exception):
    """The input file is invalid; `errors` lists its wrong lines."""

    def __init__(self, errors: list[LineError]) -> None:
        super().__init__("; ".join(error.message for error in errors[:3]))
        self.errors = errors


def parse_line(data: bytes) -> BatchLine:
    """Parse one line of a batch's file as a `BatchLine`. Raises: Invalid, Malformed."""
    try:
        return BatchLine.model_validate(parse_object(data, "line"))
    except Malformed as error:
        raise Malformed(error.detail, code="invalid_json_line") from None
    except ValidationError as error:
        raise Invalid(field_errors(error.errors(include_input=False, include_url=False))) from None


async def read_line(store: Store, key: str, line_range: LineRange) -> BatchLine:
    """Read a line that was already checked from the store. Raises: StoreError."""
    data = await store.get_range(key, line_range.start, line_range.end)
    return await asyncio.to_thread(parse_line, data)


@dataclass
class LineCheck:
    """Check of a batch's whole input file, line by line.

    Args:
        check_model: checks a line's model name (None if absent). Raises: Problem: no such model.
            None disables this check while no worker has registered a model.
    """

    endpoint: BatchEndpoint
    settings: BatchSettings
    check_model: Callable[[str | None], object] | None = None
    ranges: list[LineRange] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)
    _line: int = 0
    _custom_ids: set[str] = field(default_factory=set)

    async def run(self, chunks: AsyncIterator[bytes]) -> list[LineRange]:
        """Check all lines of the batch's file and return their byte ranges.

        Each chunk is checked in a thread, so that the event loop is not blocked.

        Raises: BatchError: names the wrong lines.
        """
        rest, start = b"", 0
        async for chunk in chunks:
            *complete, rest = (rest + chunk).split(b"\n")
            start = await asyncio.to_thread(self._check_all, complete, start)
            self._check_bounds(rest)
        await asyncio.to_thread(self._check_all, [rest], start)
        self._check_bounds(b"")
        if not self.ranges and not self.errors:
            self.errors.append(LineError(code="empty_file", message="the file has no requests"))
        if self.errors:
            raise BatchError(self.errors)
        return self.ranges

    def _check_all(self, lines: list[bytes], start: int) -> int:
        """Check complete lines of a batch's input; return the offset of the next line."""
        for data in lines:
            self._line += 1
            if data.strip():
                self._check(data, LineRange(start, start + len(data)))
            start += len(data) + 1
        return start

    def _check(self, data: bytes, line_range: LineRange) -> None:
        if len(self.errors) >= MAX_ERRORS or len(self.ranges) > self.settings.max_lines:
            return
        try:
            line = self._parsed(data)
            line_range = replace(line_range, custom_id=line.custom_id)
            self._check_names(line)
            request = self.endpoint.check(line.body)
            if self.check_model:
                self.check_model(request.model)
        except Problem as problem:
            self._add(problem)
        self.ranges.append(line_range)

    def _parsed(self, data: bytes) -> BatchLine:
        """Parse a line of a batch, if its length is permitted. Raises: Invalid, Malformed."""
        if len(data) > self.settings.max_line_bytes:
            raise self._too_long()
        return parse_line(data)

    def _too_long(self) -> Invalid:
        message = f"may have {self.settings.max_line_bytes} bytes"
        return Invalid([FieldError("line", message)], code="line_too_long")

    def _check_names(self, line: BatchLine) -> None:
        """Check the line's URL and that its `custom_id` is unique. Raises: Invalid."""
        if line.url != self.endpoint.url:
            message = f"the batch is for {self.endpoint.url}"
            raise Invalid([FieldError("url", message)], code="mismatched_endpoint")
        if line.custom_id in self._custom_ids:
            message = f"{line.custom_id[:80]!r} is used twice"
            raise Invalid([FieldError("custom_id", message)], code="duplicate_custom_id")
        self._custom_ids.add(line.custom_id)

    def _add(self, problem: Problem) -> None:
        param = problem.errors[0].field if problem.errors else None
        error = LineError(
            code=problem.code,
            message=problem.detail[:MAX_MESSAGE_CHARS],
            line=self._line,
            param=param and param[:MAX_PARAM_CHARS],
        )
        self.errors.append(error)

    def _check_bounds(self, rest: bytes) -> None:
        """Raise BatchError if a batch's file has too many lines or a line is too long."""
        if len(self.ranges) > self.settings.max_lines:
            message = f"the file has more than {self.settings.max_lines} requests"
            raise BatchError([LineError(code="too_many_requests", message=message)])
        if len(rest) > self.settings.max_line_bytes:
            self._line += 1
            self._add(self._too_long())
            raise BatchError(self.errors)


async def chunks_of(store: Store, key: str, size: int) -> AsyncIterator[bytes]:
    """Yield a file of the store in chunks of `CHUNK_BYTES`. Raises: StoreError."""
    for start in range(0, size, CHUNK_BYTES):
        yield await store.get_range(key, start, min(size, start + CHUNK_BYTES))
