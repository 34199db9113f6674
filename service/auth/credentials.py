"""Extraction of the API key from the Authorization header."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from typing import Literal

Scheme = Literal["bearer", "basic", "key"]
"""Authorization scheme: `Bearer KEY` (RFC 6750), `Basic` with the key as the password (RFC 7617),
or `Key KEY`, as fal's clients send."""


def key_of(header: str, schemes: Collection[Scheme]) -> str | None:
    """Return the API key in an Authorization header; None: no key in these schemes."""
    scheme, _, rest = header.strip().partition(" ")
    name, rest = scheme.lower(), rest.strip()
    if name not in schemes or not rest:
        return None
    return _password(rest) if name == "basic" else rest


def _password(encoded: str) -> str | None:
    """Decode the password of `user:password` in base64; if it is empty, the user."""
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return password or user or None
