"""Options of a request's output files that its pixels depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Background = Literal["opaque", "transparent"]
"""Values of `output.background`."""
TRANSPARENT: Background = "transparent"
WITH_ALPHA = ("png", "webp")
"""Formats of transparent images."""


def is_transparent(request: Mapping[str, Any]) -> bool:
    """Return whether a resolved request is for images with alpha."""
    return (request.get("output") or {}).get("background") == TRANSPARENT
