"""Fields of `POST /v1/generate` that a request contains in addition to OpenAI's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from service.errors.problems import FieldError, Invalid
from service.routes.compat.endpoint import CompatibleRequestBody
from service.routes.compat.names import FieldNames

EXTRA_BODY = "extra_body"


class OpenAIBody(CompatibleRequestBody):
    """Request body of OpenAI's APIs."""

    @model_validator(mode="before")
    @classmethod
    def _with_extra_body(cls, values: Any) -> Any:
        """Add the members of `extra_body`, which only OpenAI's Python client adds itself."""
        extra = values.get(EXTRA_BODY) if isinstance(values, Mapping) else None
        if not isinstance(extra, Mapping):
            return values
        return {**extra, **{name: value for name, value in values.items() if name != EXTRA_BODY}}


def split_images(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with a list of images as `image` and `reference_images`. Raises: Invalid.

    Clients of other engines send several images of a request without a form as a list.
    """
    images = fields.get("image")
    if not isinstance(images, list):
        return dict(fields)
    if fields.get("reference_images"):
        raise Invalid([FieldError("reference_images", "cannot be combined with a list as image")])
    first, *others = images or [None]
    return {**fields, "image": first, "reference_images": others or None}


def merge_extra_fields(
    fields: Mapping[str, Any], extra: Mapping[str, Any] | None, names: FieldNames, inside: str = ""
) -> dict[str, Any]:
    """Merge the converted OpenAI fields with additional fields of `POST /v1/generate`.

    Args:
        inside: path of the nested object, with a dot; empty: the request itself.

    Raises: Invalid: a field is present under both names, with different values.
    """
    extra_fields = dict(extra or {})
    duplicates = [
        inside + name
        for name, value in extra_fields.items()
        if name in fields and value != fields[name]
    ]
    if duplicates:
        raise Invalid(
            [FieldError(name, f"is also given as {names.of(name)}") for name in duplicates]
        )
    return {**extra_fields, **fields}
