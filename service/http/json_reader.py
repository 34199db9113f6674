"""JSON read while it arrives, with bounds that hold before any of its values is built.

Each piece of a body costs the event loop time that is linear in the piece alone. Long texts, which
are images in base64, never go through the parser: it gets what is around them, which is small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from service.errors.problems import Malformed

MAX_DEPTH = 16
"""Maximum depth of nested lists and objects; the deepest field of the API needs four."""
MAX_TOKENS = 30_000
"""Brackets, commas, names and values; a list of 10,000 numbers has 20,000."""
MAX_NUMBER_CHARS = 512
MAX_PLAIN_BYTES = 2**20
"""Maximum size of everything but long texts."""
LONG_TEXT_BYTES = 2**17
"""Length from which a text is stored separately; longer than any prompt."""
PIECE_BYTES = 2**16
"""Size of the pieces that a whole text is read in: between two of them other threads run."""

_TOKEN = re.compile(rb'"[^"\\]{0,1000}+"|["\[\]{},]|[^"\[\]{},:\s]++')
"""A short text without escapes, the beginning of any other, a bracket, a comma, or a word."""
_TEXT = re.compile(rb'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+')
_ESCAPE_BYTES = 6
_CONTROLS = bytes(range(32))


class JsonReader:
    """Incremental reader of one JSON object.

    Args:
        of: name of the JSON's source in error messages.
    """

    def __init__(self, of: str = "body") -> None:
        self._of = of
        self._plain = bytearray()
        """The document, with NaN for each long text: nobody else may write that."""
        self._long: list[str] = []
        self._text: _Text | None = None
        """Text that is being read, while inside of one."""
        self._rest = b""
        """A token or an escape that the end of a piece has cut."""
        self._tokens = 0
        self._depth = 0

    @property
    def plain_bytes(self) -> int:
        """Size of what the parser will get."""
        return len(self._plain)

    def feed(self, piece: bytes) -> None:
        """Read a piece of the text.

        Raises: Malformed.
        """
        data, at = self._rest + piece, 0
        self._rest = b""
        while at < len(data):
            at = self._read_text(data, at) if self._text else self._read_tokens(data, at)
        if len(self._plain) > MAX_PLAIN_BYTES:
            raise Malformed(
                f"the {self._of} has more than {MAX_PLAIN_BYTES} bytes beside its images"
            )

    def _read_tokens(self, data: bytes, start: int) -> int:
        """Scan tokens up to where a text begins, or to the end; return that position."""
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
                if token.end() == len(data):  # goes on, perhaps, in the next piece
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
        """Scan a text up to where it ends, or to the end of the data; return that position."""
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
            raise self._invalid("an escape in a text is none of JSON's")
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
        """The object. Repeated keys and NaN are refused. Raises: Malformed."""
        if self._text:
            raise self._invalid("it ends inside of a text")
        long = iter(self._long)
        try:
            value = json.loads(
                (bytes(self._plain) + self._rest).decode(),
                object_pairs_hook=_unique,
                parse_constant=lambda name: _next_long(long, name),
            )
        except ValueError as error:
            raise self._invalid(_where(error)) from None
        if not isinstance(value, dict):
            raise Malformed(f'the {self._of} must be a JSON object, such as {{"prompt": "a cat"}}')
        return value

    def _check_word(self, word: bytes) -> None:
        """Raises: Malformed: it is no number and none of the three words."""
        if len(word) > MAX_NUMBER_CHARS:
            raise self._invalid("a number has too many digits")
        if word[:1] in b"NI" or word[:2] == b"-I":
            raise self._invalid("NaN and Infinity are no numbers there")

    def _invalid(self, why: str) -> Malformed:
        return Malformed(f"the {self._of} is no valid JSON: {why}")


class _Text:
    """A text that arrives in pieces, none of which cuts an escape."""

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
    """Raises: Malformed."""
    if b"\\" in piece and piece.isascii():
        try:
            piece = json.loads(b'"%s"' % piece).encode("ascii")
        except ValueError:
            piece = b"\xff"
    elif len(piece.translate(None, _CONTROLS)) != len(piece):
        piece = b"\xff"
    if not piece.isascii():
        raise Malformed(
            f"a text of more than {LONG_TEXT_BYTES} bytes is no image in base64, and no other field"
            " takes one"
        )
    return piece


def parse_object(data: bytes, of: str = "body") -> dict[str, Any]:
    """Return the JSON object that the data is. Takes long for megabytes: call it in a thread.

    Args:
        of: name of the JSON's source in error messages.

    Raises: Malformed.
    """
    reader = JsonReader(of)
    for start in range(0, len(data), PIECE_BYTES):
        reader.feed(data[start : start + PIECE_BYTES])
    return reader.finish()


def parse_value(text: str) -> Any:
    """Return the JSON value that a short text is. Raises: ValueError: it is none."""
    try:
        found = parse_object(b'{"value":%s}' % text.encode())
    except (Malformed, UnicodeEncodeError):
        raise ValueError("no value in JSON") from None
    if len(found) > 1:
        raise ValueError("more than one value")
    return found["value"]


def _where(error: ValueError) -> str:
    """Describe what is wrong, without quoting the body."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is no UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    return str(error)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:40]!r} stands there twice")
    return value


def _next_long(long: Iterator[str], name: str) -> str:
    if name != "NaN":
        raise ValueError(f"{name} is no number in JSON")
    return next(long)
