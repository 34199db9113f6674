"""Streaming JSON reader, whose limits apply before values are built.

The event loop's time per piece is linear in the piece's size. Long texts (images in base64) bypass
the parser, which receives only the small remainder.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from service.errors.problems import Malformed

MAX_DEPTH = 16
"""Maximum depth of nested lists and objects; the deepest field of the API needs four."""
MAX_TOKENS = 30_000
"""Maximum number of brackets, commas, names and values; a list of 10,000 numbers has 20,000."""
MAX_NUMBER_CHARS = 512
MAX_PLAIN_BYTES = 2**20
"""Maximum size of everything except long texts."""
LONG_TEXT_BYTES = 2**17
"""Length from which a text is stored separately; longer than any prompt."""
PIECE_BYTES = 2**16
"""Size of the pieces in which a complete document is read, so that other threads run in between."""

_TOKEN = re.compile(rb'"[^"\\]{0,1000}+"|["\[\]{},]|[^"\[\]{},:\s]++')
"""Short text without escapes, start of any other text, bracket, comma, or word."""
_TEXT = re.compile(rb'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+')
_ESCAPE_BYTES = 6
_MARK = codecs.BOM_UTF8
"""Byte order mark, which some editors and clients write before a document; it has no meaning."""
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CONTROLS = bytes(range(32))


class JsonReader:
    """Incremental parser of one JSON object, for bodies that arrive in pieces.

    Args:
        of: name of the JSON's source in error messages.
    """

    def __init__(self, of: str = "body") -> None:
        self._of = of
        self._plain = bytearray()
        """Document with NaN as placeholder of each long text. Input may not contain NaN."""
        self._long: list[str] = []
        self._text: _Text | None = None
        """Text in progress; None outside texts."""
        self._rest = b""
        """Token or escape cut at the end of a piece."""
        self._start: bytearray | None = bytearray()
        """First bytes of the document, until a byte order mark is recognized; then None."""
        self._tokens = 0
        self._depth = 0

    @property
    def plain_bytes(self) -> int:
        """Size of the document without its long texts, which the JSON parser receives."""
        return len(self._plain)

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the JSON document.

        Raises: Malformed.
        """
        data, at = self._rest + self._without_mark(piece), 0
        self._rest = b""
        while at < len(data):
            at = self._read_text(data, at) if self._text else self._read_tokens(data, at)
        if len(self._plain) > MAX_PLAIN_BYTES:
            raise Malformed(
                f"the {self._of} has more than {MAX_PLAIN_BYTES} bytes in addition to its images"
            )

    def _without_mark(self, piece: bytes) -> bytes:
        """Remove a byte order mark from the JSON's start. Raises: Malformed: of UTF-16."""
        if self._start is None:
            return piece
        self._start += piece
        if self._start.startswith(_WIDE_MARKS):
            raise self._invalid("it is in UTF-16; send it in UTF-8")
        if len(self._start) < len(_MARK) and _MARK.startswith(self._start):
            return b""
        start, self._start = bytes(self._start), None
        return start.removeprefix(_MARK)

    def _read_tokens(self, data: bytes, start: int) -> int:
        """Scan JSON tokens up to the start of a string, or to the end; return that position."""
        for token in _TOKEN.finditer(data, start):
            first = token[0][:1]
            self._tokens += 1
            if first in b"[]{}":
                self._depth += 1 if first in b"[{" else -1
            if self._tokens > MAX_TOKENS or self._depth > MAX_DEPTH:
                raise self._too_much()
            if first == b'"' and len(token[0]) == 1:
                self._plain += data[start : token.start()]
                self._text = _Text()
                return token.end()
            if first not in b'[]{},"':
                self._check_word(token[0])
                if token.end() == len(data):  # may continue in the next piece
                    self._tokens -= 1
                    self._plain += data[start : token.start()]
                    self._rest = token[0]
                    return len(data)
        self._plain += data[start:]
        return len(data)

    def _too_much(self) -> Malformed:
        if self._depth > MAX_DEPTH:
            return Malformed(f"the {self._of} is nested deeper than {MAX_DEPTH} levels")
        return Malformed(f"the {self._of} has more than {MAX_TOKENS} names, values and commas")

    def _read_text(self, data: bytes, start: int) -> int:
        """Scan a JSON string up to its end, or to the end of the data; return that position."""
        assert self._text is not None
        end = data.find(b'"', start)
        end = len(data) if end < 0 else end
        if data.find(b"\\", start, end) >= 0:
            end = _TEXT.match(data, start).end()  # type: ignore[union-attr]
        self._text.add(data[start:end])
        if data[end : end + 1] == b'"':
            self._close(self._text)
            return end + 1
        if len(data) - end >= _ESCAPE_BYTES:
            raise self._invalid("a text has an invalid escape")
        self._rest = data[end:]
        return len(data)

    def _close(self, text: _Text) -> None:
        if text.is_long:
            self._plain += b"NaN"
            self._long.append(text.long())
        else:
            self._plain += b'"%s"' % text.data
        self._text = None

    def finish(self) -> dict[str, Any]:
        """Parse the object, rejecting repeated keys and NaN. Raises: Malformed."""
        if self._text:
            raise self._invalid("it ends inside a text")
        long = iter(self._long)
        try:
            value = json.loads(
                (bytes(self._plain) + self._rest).decode(),
                object_pairs_hook=_unique,
                parse_constant=lambda name: _next_long(long, name),
            )
        except ValueError as error:
            raise self._invalid(reason_of(error)) from None
        if not isinstance(value, dict):
            raise Malformed(f'the {self._of} must be a JSON object, such as {{"prompt": "a cat"}}')
        return value

    def _check_word(self, word: bytes) -> None:
        """Check a JSON number or literal. Raises: Malformed: too long, or NaN or Infinity."""
        if len(word) > MAX_NUMBER_CHARS:
            raise self._invalid("a number has too many digits")
        if word[:1] in b"NI" or word[:2] == b"-I":
            raise self._invalid("NaN and Infinity are not allowed")

    def _invalid(self, reason: str) -> Malformed:
        return Malformed(f"the {self._of} is not valid JSON: {reason}")


class _Text:
    """JSON string that arrives in pieces, none of which cuts an escape."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_long = False

    def add(self, piece: bytes) -> None:
        self.data += _unescaped(piece) if self.is_long else piece
        if not self.is_long and len(self.data) > LONG_TEXT_BYTES:
            self.is_long = True
            self.data = bytearray(_unescaped(bytes(self.data)))

    def long(self) -> str:
        return self.data.decode("ascii")


def _unescaped(piece: bytes) -> bytes:
    """Resolve escapes in a piece of a long JSON string. Raises: Malformed: not ASCII."""
    if b"\\" in piece and piece.isascii():
        try:
            piece = json.loads(b'"%s"' % piece).encode("ascii")
        except ValueError:
            piece = b"\xff"
    elif len(piece.translate(None, _CONTROLS)) != len(piece):
        piece = b"\xff"
    if not piece.isascii():
        raise Malformed(
            f"a text of more than {LONG_TEXT_BYTES} bytes is not an image in base64, and no other"
            " field accepts one"
        )
    return piece


def parse_object(data: bytes, of: str = "body") -> dict[str, Any]:
    """Parse a JSON object. Megabytes take long, so call it in a thread.

    Args:
        of: name of the JSON's source in error messages.

    Raises: Malformed.
    """
    reader = JsonReader(of)
    for start in range(0, len(data), PIECE_BYTES):
        reader.feed(data[start : start + PIECE_BYTES])
    return reader.finish()


def parse_value(text: str) -> Any:
    """Parse a short JSON value. Raises: ValueError: not a single value."""
    try:
        document = parse_object(b'{"value":%s}' % text.encode())
    except (Malformed, UnicodeEncodeError):
        raise ValueError("no JSON value") from None
    if len(document) > 1:
        raise ValueError("more than one value")
    return document["value"]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:40]!r} occurs twice")
    return value


def _next_long(long: Iterator[str], name: str) -> str:
    if name != "NaN":
        raise ValueError(f"{name} is not a JSON number")
    return next(long)


_NO_VALUE = "a value is missing or misspelt"
_REASONS = (
    ("property name", "a name in double quotes is missing (a comma before } is not allowed)"),
    ("trailing comma", "a comma before } or ] is not allowed"),
    ("':'", "a colon is missing"),
    ("','", "a comma is missing"),
    ("Extra data", "the document continues after its end"),
    ("control character", "a text has a control character; escape it"),
    ("escape", "a text has an invalid escape"),
)
"""Parts of the decoder's messages, and the messages that clients receive instead."""


def reason_of(error: ValueError) -> str:
    """Describe a JSON error by its position and cause."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        reason = next((ours for theirs, ours in _REASONS if theirs in error.msg), _NO_VALUE)
        return f"{reason} at line {error.lineno} column {error.colno}"
    return str(error)
