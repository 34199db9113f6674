"""Phrases of libraries' messages, which no response to a client may contain."""

from __future__ import annotations

PHRASES = (
    # pydantic and FastAPI
    *("Input should", "String should", "List should", "Value should", "Field required"),
    *("Extra inputs", "Value error", "validation error", "pydantic", "unable to parse"),
    *("is not a valid", "Dictionary should", "after validation"),
    # json
    *("Expecting", "utf-8-sig", "Unexpected UTF-8", "Extra data", "Unterminated string"),
    *("Invalid control", "Invalid \\", "delimiter"),
    # codecs, base64, Pillow, PyAV, zlib
    *("codec can't", "Incorrect padding", "base64-encoded", "image file is truncated"),
    *("cannot identify image", "Decompressed data", "MAX_TEXT", "Errno", "av.error"),
    # names of exceptions, also in parentheses
    *("Error)", "Error:", "Exception", "Traceback"),
    # multipart, httpx, h11, XML
    *("Did not find", "Maximum header", "Found invalid character", "Boundary length"),
    *("Request URL", "All connection attempts", "not well-formed", "no element found"),
)


def library_phrases(text: str) -> list[str]:
    """List the phrases that a response contains."""
    return [phrase for phrase in PHRASES if phrase in text]
