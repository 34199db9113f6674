"""Messages about invalid JSON, without the text of Python's decoder or of the body."""

from __future__ import annotations

import json

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
    """Describe an error of the decoder, or of one of its hooks, by place and cause."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is no UTF-8"
    if isinstance(error, json.JSONDecodeError):
        reason = next((ours for theirs, ours in _REASONS if theirs in error.msg), _NO_VALUE)
        return f"{reason} at line {error.lineno} column {error.colno}"
    return str(error)
