"""Door: another API's routes, with what the app must know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from service.errors.forms import ErrorForm

CONTENT_POLICY = {"refused_by_safety": "content_policy_violation"}
"""Code of OpenAI's and fal's APIs for what the operator's safety check refuses."""


@dataclass(frozen=True)
class Door:
    """Routes of another API.

    Args:
        bodies: schemas of what its routes read and write by hand, for `openapi.yaml`.
        error_forms: form of its errors by prefix of the path; other paths answer problem+json.
    """

    router: APIRouter
    bodies: tuple[type[BaseModel], ...] = ()
    error_forms: Mapping[str, ErrorForm] = field(default_factory=dict)


class DoorBody(BaseModel):
    """Base of what clients of other APIs send: without unknown fields, and frozen.

    Types are converted where nothing is lost, since most of it comes as texts of a form.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
