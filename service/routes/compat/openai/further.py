"""Fields of `POST /v1/generate` beside those of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.errors.problems import FieldError, Invalid
from service.routes.compat.names import Names


def joined(
    fields: Mapping[str, Any], further: Mapping[str, Any] | None, names: Names, inside: str = ""
) -> dict[str, Any]:
    """Return a request's fields with further ones.

    Args:
        inside: path of the object that holds them, with its dot; empty: the request itself.

    Raises: Invalid: one is there by both names.
    """
    given = dict(further or {})
    twice = [inside + name for name in given if name in fields]
    if twice:
        raise Invalid([FieldError(name, f"is there as {names.of(name)}, too") for name in twice])
    return {**given, **fields}
