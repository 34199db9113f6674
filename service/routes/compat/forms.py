"""Forms (multipart/form-data) of other APIs: texts that become fields, and image files."""

from __future__ import annotations

import base64
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from service.http.form_parts import MemoryPart
from service.http.inflight_limits import Hold
from service.http.json_reader import parse_value
from service.http.multipart import read_form
from service.schemas.request import GenerateRequest

TEXT_BYTES = 2**18
"""Maximum size of a text of a form."""


class HeldPart(MemoryPart):
    """Part whose bytes count as held by its request."""

    def __init__(self, max_bytes: int, what: str, hold: Hold) -> None:
        super().__init__(max_bytes, what)
        self._hold = hold

    def add(self, data: bytes) -> None:
        """Take a piece. Raises: BodyTooLarge; Busy, Unavailable: too much is held."""
        self._hold.add(len(data))
        super().add(data)


class FilesPart:
    """Part that may come several times: a list of files."""

    repeats = True
    filename = ""

    def __init__(self, max_bytes: int, what: str, hold: Hold) -> None:
        self.max_bytes = max_bytes
        self.what = what
        self.files: list[HeldPart] = []
        self._hold = hold

    def begin(self) -> None:
        """Begin the next file."""
        self.files.append(HeldPart(self.max_bytes, self.what, self._hold))

    def add(self, data: bytes) -> None:
        """Take a piece of the current file. Raises: as `HeldPart.add`."""
        self.files[-1].add(data)

    async def settle(self, *, ends: bool = False) -> None:
        """Leave everything where it is."""

    def whole(self) -> list[bytes]:
        """Return the files."""
        return [bytes(file.data) for file in self.files]


@dataclass(frozen=True)
class Form:
    """Form as it was sent.

    Args:
        fields: its texts by name.
        files: the files of each part that may hold files, in their order; those without any are
            left out.
    """

    fields: dict[str, str]
    files: dict[str, list[bytes]]


async def read(
    request: Request, texts: Collection[str], files: Collection[str], hold: Hold, max_bytes: int
) -> Form:
    """Read a form whose parts are texts and files with these names.

    Args:
        hold: counts the form's bytes as they arrive.
        max_bytes: of all parts together.

    Raises: Problem: as `read_form`.
    """
    text_parts = {name: HeldPart(TEXT_BYTES, name, hold) for name in texts}
    file_parts = {name: FilesPart(max_bytes, name, hold) for name in files}
    await read_form(request, {**text_parts, **file_parts}, max_bytes)
    return Form(
        {name: part.text() for name, part in text_parts.items() if part.is_there},
        {name: part.whole() for name, part in file_parts.items() if part.files},
    )


def _takes_text(schema: dict[str, Any]) -> bool:
    """Return whether a field with that schema is a text."""
    return any(kind.get("type") == "string" for kind in schema.get("anyOf", [schema]))


_FIELDS = GenerateRequest.model_json_schema()["properties"].items()
_TEXTS = frozenset(name for name, schema in _FIELDS if _takes_text(schema))
"""Fields of ours that are texts."""


def typed(name: str, text: str) -> Any:
    """Return the value of one of our fields that a form has as a text.

    Numbers, lists and objects are written as JSON; what is none stays as it is, for validation to
    refuse.
    """
    if name in _TEXTS:
        return text
    try:
        return parse_value(text)
    except ValueError:
        return text


def in_base64(data: bytes) -> str:
    """Return an image file as our fields take it."""
    return base64.b64encode(data).decode()
