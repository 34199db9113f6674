"""Forms (multipart/form-data) of compatible endpoints: text fields and image files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from service.http.form_parts import MemoryPart
from service.http.inflight_limits import Hold
from service.http.json_reader import parse_value
from service.http.multipart import read_form
from service.schemas.request import GenerateRequest

TEXT_BYTES = 2**18
"""Maximum size of a text field."""
ABSENT = ("null", "undefined")
"""Texts that programs in JavaScript write for a field without a value."""


class HeldPart(MemoryPart):
    """Form part whose bytes count against the limits on bytes in flight."""

    def __init__(self, max_bytes: int, what: str, hold: Hold) -> None:
        super().__init__(max_bytes, what)
        self._hold = hold

    def add(self, data: bytes) -> None:
        """Append a chunk to the form part. Raises: BodyTooLarge; Busy, Unavailable: a limit."""
        self._hold.add(len(data))
        super().add(data)


class FilesPart:
    """Form part that may be repeated: a list of files."""

    repeats = True
    filename = ""

    def __init__(self, max_bytes: int, what: str, hold: Hold) -> None:
        self.max_bytes = max_bytes
        self.what = what
        self.files: list[HeldPart] = []
        self._hold = hold

    def begin(self) -> None:
        """Begin the next file of a repeated form part."""
        self.files.append(HeldPart(self.max_bytes, self.what, self._hold))
        self.files[-1].filename = self.filename

    def add(self, data: bytes) -> None:
        """Append a chunk to the form part's current file. Raises: as `HeldPart.add`."""
        self.files[-1].add(data)

    async def settle(self, *, ends: bool = False) -> None:
        """Do nothing: the form's files stay in memory."""

    def contents(self) -> list[bytes]:
        """Return the contents of the form part's files.

        Browsers send an empty part without a file name for an input without a file; it is skipped.
        """
        absent = (b"", *(text.encode() for text in ABSENT))
        return [bytes(file.data) for file in self.files if file.filename or file.data not in absent]


@dataclass(frozen=True)
class Form:
    """Parsed form of a compatible endpoint: texts and files.

    Args:
        fields: text fields by name.
        files: file contents of each file part, in order; parts without files are absent.
    """

    fields: dict[str, str]
    files: dict[str, list[bytes]]


async def read(
    request: Request,
    texts: Collection[str],
    files: Collection[str],
    hold: Hold,
    max_bytes: int,
    record_model: Callable[[str], None],
) -> Form:
    """Parse a form with these text parts and file parts.

    Args:
        hold: counts the form's bytes as they arrive.
        max_bytes: limit on all parts together.
        record_model: called with the form's `model`, also if a later part is invalid.

    Raises: Problem: as `read_form`.
    """
    text_parts = {name: HeldPart(TEXT_BYTES, name, hold) for name in texts}
    file_parts = {name: FilesPart(max_bytes, name, hold) for name in files}
    model = text_parts["model"]
    try:
        with hold.receiving():
            await read_form(request, {**text_parts, **file_parts}, max_bytes)
    finally:
        if model.is_present:
            record_model(model.data.decode(errors="replace"))
    given = {name: part.text() for name, part in text_parts.items() if part.is_present}
    return Form(
        {name: text for name, text in given.items() if name == "prompt" or text not in ABSENT},
        {name: data for name, part in file_parts.items() if (data := part.contents())},
    )


def _kinds_of(schema: dict[str, Any]) -> set[str]:
    """Return the value types that a JSON schema accepts."""
    return {kind.get("type", "object") for kind in schema.get("anyOf", [schema])} - {"null"}


_FIELDS = GenerateRequest.model_json_schema()["properties"].items()
_KINDS = {name: kinds for name, schema in _FIELDS if "string" in (kinds := _kinds_of(schema))}
"""Types of the fields of `GenerateRequest` that accept strings."""


_NUMBERS = frozenset(
    name for name, schema in _FIELDS if _kinds_of(schema) <= {"integer", "number", "boolean"}
)


def plain_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a vendor's request fields to values that this API reads.

    Numbers in texts become numbers. Empty texts in their place, and the seed -1, with which clients
    of several APIs ask for a random one, are omitted.
    """
    values = {
        name: typed(name, value) if name in _NUMBERS and isinstance(value, str) else value
        for name, value in fields.items()
        if not (name in _NUMBERS and value == "")
    }
    if values.get("seed") == -1:
        del values["seed"]
    return values


def typed(name: str, text: str) -> Any:
    """Convert a form's text to the value of a `GenerateRequest` field.

    Numbers, lists and objects are JSON. Invalid JSON stays a text, which validation rejects. In a
    field that also accepts strings, such as `scheduler`, JSON begins with a bracket.
    """
    if name in _KINDS and (_KINDS[name] == {"string"} or not text.startswith(("{", "["))):
        return text
    try:
        return parse_value(text)
    except ValueError:
        return text


def in_base64(data: bytes) -> str:
    """Encode an image file as `GenerateRequest` accepts it."""
    return base64.b64encode(data).decode()
