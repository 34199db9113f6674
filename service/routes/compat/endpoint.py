"""Compatible endpoint: a vendor's routes, with their schemas and error formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from service.errors.forms import ErrorForm

CONTENT_POLICY = {"refused_by_safety": "content_policy_violation"}
"""Error code of OpenAI's and fal's APIs for requests that the safety check rejects."""


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
