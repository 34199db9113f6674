"""Compatible endpoint: a vendor's routes, with their schemas and error formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Discriminator, Tag, model_validator

from service.errors.forms import ErrorForm
from service.errors.problems import UNION_TAG, Problem

CONTENT_POLICY = {"refused_by_safety": "content_policy_violation"}
"""Error code of OpenAI's and fal's APIs for requests that the safety check rejects."""

OBJECT, TEXT, LIST = f"{UNION_TAG}object", f"{UNION_TAG}text", f"{UNION_TAG}list"
"""Tags of the members of a union of an object, a text or a list; paths of errors omit them."""


def kind_of_value(value: Any) -> str:
    """Return the Pydantic union tag of a value that is an object or a text."""
    return OBJECT if isinstance(value, Mapping | BaseModel) else TEXT


TextOrObject = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[dict[str, Any], Tag(OBJECT)],
    Discriminator(kind_of_value),
]
"""Name, or an object with a name and options."""


def _text_or_list(value: Any) -> str:
    """Return the Pydantic union tag of a value that is a list or a text."""
    return LIST if isinstance(value, list) else TEXT


TextOrList = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[str], Tag(LIST)], Discriminator(_text_or_list)
]
"""A text, or several."""


def code_of(problem: Problem) -> str:
    """Return the problem's code as OpenAI's and fal's APIs name it."""
    return CONTENT_POLICY.get(problem.code, problem.code)


@dataclass(frozen=True)
class CompatibleEndpoint:
    """Routes of another vendor's API.

    Args:
        bodies: schemas that its routes parse and serialize themselves, for `openapi.yaml`.
        error_forms: error format by path prefix; other paths use problem+json.
    """

    router: APIRouter
    bodies: tuple[type[BaseModel], ...] = ()
    error_forms: Mapping[str, ErrorForm] = field(default_factory=dict)


class CompatibleRequestBody(BaseModel):
    """Base of other vendors' request bodies: frozen, and without unknown fields.

    Types are converted if the conversion is lossless, since form fields are texts.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_empty_values(cls, values: Any) -> Any:
        """Omit empty texts of optional fields, which forms and settings of programs contain.

        An empty prompt is a prompt. `[]` in place of an object is empty: PHP writes `{}` so.
        """
        if not isinstance(values, dict) or not any(value in ("", []) for value in values.values()):
            return values
        optional = {
            field.alias or name: field.annotation
            for name, field in cls.model_fields.items()
            if name != "prompt" and not field.is_required()
        }
        return {
            name: value
            for name, value in values.items()
            if name not in optional
            or (value != "" and (value != [] or _accepts_lists(optional[name])))
        }


def _accepts_lists(annotation: Any) -> bool:
    """Return whether a type accepts a list."""
    kind = get_origin(annotation)
    is_list = annotation is Any or kind is list
    return is_list or (kind is not dict and any(map(_accepts_lists, get_args(annotation))))


def lowered(value: Any) -> Any:
    """Return a text in lower case, without white space around it; other values unchanged."""
    return value.strip().lower() if isinstance(value, str) else value


def listed(value: Any) -> Any:
    """Return a text as a list of one; other values unchanged."""
    return [value] if isinstance(value, str) else value


def file_format(name: Any) -> Any:
    """Return the name of a file format as `output.format` has it: `JPG` is `jpeg`."""
    plain = lowered(name)
    return "jpeg" if plain == "jpg" else plain
