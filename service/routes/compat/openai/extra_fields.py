"""Fields of `POST /v1/generate` that a request contains in addition to OpenAI's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.errors.problems import FieldError, Invalid
from service.routes.compat.names import FieldNames


def merge_extra_fields(
    fields: Mapping[str, Any], extra: Mapping[str, Any] | None, names: FieldNames, inside: str = ""
) -> dict[str, Any]:
    """Merge the converted OpenAI fields with additional fields of `POST /v1/generate`.

    Args:
        inside: path of the nested object, with a dot; empty: the request itself.

    Raises: Invalid: a field is present under both names.
    """
    extra_fields = dict(extra or {})
    duplicates = [inside + name for name in extra_fields if name in fields]
    if duplicates:
        raise Invalid(
            [FieldError(name, f"is also given as {names.of(name)}") for name in duplicates]
        )
    return {**extra_fields, **fields}
